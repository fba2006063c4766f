"""Build the files of the console, app/console/static, from its source in app/console/web.

    python -m deploy.console.build

``deploy.console.install`` installs Node and the packages. The build runs in a copy of the source in ``.clients``, so
the repository's tree stays free of packages. The same source gives the same bytes: a test compares the committed files
with a fresh build.
"""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

from deploy.client.types import server_document
from deploy.console.install import SOURCE, WORK
from tests.clients.install import node

TARGET = SOURCE.parent / "static"
#: npm packages, those that only tests use included.
PACKAGES = WORK / "node_modules"
#: Types of the HTTP interface, made from its document.
_TYPES = "src/api/schema.d.ts"
_FILES = ("index.html", "tsconfig.json", "vite.config.ts")


def main() -> None:
    argparse.ArgumentParser(description="Build the files of the console.").parse_args()
    build(TARGET)


def build(target: Path) -> None:
    """Check form and types of the source, and write the build into a folder, which is emptied before.

    Raises:
        SystemExit: the source is not formatted or has a wrong type, or a tool failed.
    """
    _copy_source()
    _run("prettier/bin/prettier.cjs", "--check", "src", *_FILES, f"!{_TYPES}")
    _run("typescript/bin/tsc", "--noEmit")
    _run("vite/bin/vite.js", "build", "--outDir", str(target), "--emptyOutDir", "--logLevel", "error")
    _add_licenses(target / "licenses.md")


def _add_licenses(file: Path) -> None:
    """Add the notices of packages that only the worker has, which Vite leaves out."""
    notices = file.read_text(encoding="utf-8")
    for name in sorted(json.loads((SOURCE / "package.json").read_text(encoding="utf-8"))["dependencies"]):
        if f"\n## {name} - " not in notices:
            about = json.loads((PACKAGES / name / "package.json").read_text(encoding="utf-8"))
            license_text = (PACKAGES / name / "LICENSE").read_text(encoding="utf-8").strip()
            notices += f"\n## {name} - {about['version']} ({about['license']})\n\n{license_text}\n"
    file.write_text(notices, encoding="utf-8")


def _copy_source() -> None:
    """Copy the source, and generate the types of the HTTP interface."""
    shutil.rmtree(WORK / "src", ignore_errors=True)
    shutil.copytree(SOURCE / "src", WORK / "src")
    for name in _FILES:
        shutil.copy(SOURCE / name, WORK)
    document = WORK / "openapi.json"
    document.write_text(json.dumps(server_document()), encoding="utf-8")
    # A field with a default may be left out of a request.
    options = ("--output", _TYPES, "--default-non-nullable", "false")
    _run("openapi-typescript/bin/cli.js", document.name, *options)


def _run(script: str, *arguments: str) -> None:
    environment = os.environ | {"NODE_ENV": "production", "DO_NOT_TRACK": "1"}
    command = [str(node()), str(PACKAGES / script), *arguments]
    done = subprocess.run(command, cwd=WORK, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{script} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
