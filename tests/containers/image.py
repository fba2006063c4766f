"""The image of a server: its build, its size, and what is not in it."""

import json
from pathlib import Path

from tests.containers.podman import ROOT, build, podman, run

IMAGE = "localhost/tenora:cpu"
#: Prints the largest packages, the bytecode, setuid programs, compilers and the user.
_SURVEY = """
import json, os, shutil, stat
from pathlib import Path

site = Path("/opt/tenora/lib/python3.11/site-packages")

def size(path):
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())

packages = sorted(((size(path), path.name) for path in site.iterdir() if path.is_dir()), reverse=True)
setuid = []
for folder, _, files in os.walk("/"):
    if folder.startswith(("/proc", "/sys")):
        continue
    for name in files:
        path = os.path.join(folder, name)
        mode = os.lstat(path).st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
            setuid.append(path)
print(json.dumps({
    "packages": packages[:12],
    "bytecode": sum(file.stat().st_size for file in site.rglob("*.pyc")),
    "setuid": setuid,
    "compilers": [name for name in ("gcc", "g++", "cc", "c++", "clang") if shutil.which(name)],
    "user": [os.getuid(), os.getgid()],
    "writable": [path for path in ("/", "/opt/tenora", "/etc", "/usr") if os.access(path, os.W_OK)],
}))
"""


def build_image() -> None:
    """Build the image with the packages that this machine's pip would find."""
    options = []
    ask = "from deploy.install import pip_configuration as found; print(found().get('find-links', ''))"
    links = run(str(ROOT / ".tools/bin/python"), "-c", ask, cwd=ROOT).split()
    if links and Path(links[0]).is_dir():
        options += [f"--volume={links[0]}:/wheels:ro", "--build-arg=TORCH_LINKS=/wheels"]
    build(IMAGE, ROOT / "deploy/container/Dockerfile", *options)


def survey() -> dict[str, object]:
    """Return the size of the image and of its parts.

    Raises:
        AssertionError: the image has what it must not have.
    """
    python = ("--network=none", "--read-only", "--entrypoint=/opt/tenora/bin/python", IMAGE)
    found = json.loads(podman("run", "--rm", *python, "-c", _SURVEY))
    assert found["setuid"] == [], found["setuid"]
    assert found["compilers"] == [], found["compilers"]
    assert found["user"] == [10001, 10001], found["user"]
    assert found["writable"] == [], found["writable"]
    size = int(podman("image", "inspect", "--format={{.Size}}", IMAGE))
    parts = {name: round(size / 1e6) for size, name in found["packages"]}
    return {"megabytes": round(size / 1e6), "bytecode": round(found["bytecode"] / 1e6), "packages": parts}
