#!/bin/sh
# The pinned locks from pyproject.toml, one per device. The CPU lock leaves torch to deploy/install.py.
set -eu
cd "$(dirname "$0")/../.."
export UV_CUSTOM_COMPILE_COMMAND="make locks"
common="--quiet --upgrade --python-version 3.11 --python-platform x86_64-manylinux_2_28"
UV_FIND_LINKS="${PIP_FIND_LINKS:-}" "$UV" pip compile pyproject.toml $common --extra cpu --extra dev \
    --override deploy/locks/cpu-overrides.txt --no-emit-package torch -o deploy/locks/cpu.txt
"$UV" pip compile pyproject.toml $common --extra gpu --extra dev -o deploy/locks/gpu.txt
