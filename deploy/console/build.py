"""Build the files of the console, app/console/static, from its source in app/console/web.

    python -m deploy.console.build

Node comes from PyPI and the packages from npm, with the hashes of their locks; neither runs an install script. The
build runs in a copy of the source in ``.clients``, so the repository's tree stays free of packages. The same source
gives the same bytes: a test compares the committed files with a fresh build.
"""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

from deploy.client.types import server_document
from deploy.install import ROOT, install_uv
from tests.clients.install import FOLDER, LOCKS, NODE, install_node, install_python, node

SOURCE = ROOT / "app" / "console" / "web"
TARGET = ROOT / "app" / "console" / "static"
#: Copy of the source, with its packages.
WORK = FOLDER / SOURCE.name
_FILES = ("index.html", "tsconfig.json", "vite.config.ts")


def main() -> None:
    argparse.ArgumentParser(description="Build the files of the console.").parse_args()
    build(TARGET)


def build(target: Path) -> None:
    """Check the types of the source and write the build into a folder, which is emptied before.

    Raises:
        subprocess.CalledProcessError: the source has a wrong type, or a tool failed.
    """
    prepare()
    _run("typescript/bin/tsc", "--noEmit")
    _run("vite/bin/vite.js", "build", "--outDir", str(target), "--emptyOutDir", "--logLevel", "error")


def prepare() -> None:
    """Install Node and the packages, copy the source, and generate the types of the HTTP interface."""
    install_uv()
    install_python(LOCKS / f"{NODE}.txt")
    install_node(SOURCE)
    shutil.rmtree(WORK / "src", ignore_errors=True)
    shutil.copytree(SOURCE / "src", WORK / "src")
    for name in _FILES:
        shutil.copy(SOURCE / name, WORK)
    document = WORK / "openapi.json"
    document.write_text(json.dumps(server_document()), encoding="utf-8")
    _run("openapi-typescript/bin/cli.js", document.name, "--output", "src/api/schema.d.ts", "--default-non-nullable", "false")


def packages() -> Path:
    """Return the folder of the installed npm packages."""
    return WORK / "node_modules"


def _run(script: str, *arguments: str) -> None:
    environment = os.environ | {"NODE_ENV": "production", "DO_NOT_TRACK": "1"}
    done = subprocess.run(
        [node(), packages() / script, *arguments], cwd=WORK, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{script} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
