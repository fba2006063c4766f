"""Build what a release consists of, into a new folder.

    .venv/bin/python -m deploy.release FOLDER    # or: make release

- wheels of the server and the client,
- the context of an image: all that ``docker build`` and compose need,
- the chart for Kubernetes,
- a list of all packages of each image with their hashes and licences (SBOM, CycloneDX 1.6),
- SHA256SUMS of these files.

Files come from the commit HEAD, and have its time. So two builds of one commit have the same content.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
UV = ROOT / ".tools" / "bin" / "uv"
#: Folders and files of the repository that an image and the stack of compose need.
CONTEXT = [
    *(".dockerignore", "LICENSE", "README.md", "pyproject.toml"),
    *("adapters", "app", "client", "migrations"),
    *("deploy/container", "deploy/grafana", "deploy/locks", "deploy/nginx", "deploy/prometheus"),
]
CHART = "deploy/helm/tenora"
#: A longer first line in a wheel's field `License` is text of the licence, not its name.
LONGEST_NAME = 60


class ReleaseError(Exception):
    """The release cannot be built. The message says why."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the files of a release.")
    parser.add_argument("folder", type=Path, help="New folder for the files")
    folder = parser.parse_args().folder.resolve()
    try:
        for path in build(folder):
            print(f"{path.stat().st_size:>12,} {path.name}")  # noqa: T201 - the result of a command
    except ReleaseError as error:
        raise SystemExit(f"release.py: {error}") from None


def build(folder: Path) -> list[Path]:
    """Build all files and return their paths.

    Raises:
        ReleaseError
    """
    if folder.exists():
        raise ReleaseError(f"{folder} exists already. Name a new folder.")
    version = checked_version()
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "source"
        _check_out(source)
        for project in (source, source / "client"):
            _build_wheel(project, folder)
        _pack(source, CONTEXT, folder / f"tenora-{version}-image.tar.gz", f"tenora-{version}")
        if (source / CHART).exists():
            _pack(source / CHART, ["."], folder / f"tenora-chart-{version}.tgz", "tenora")
        for device in ("cpu", "gpu"):
            path = folder / f"tenora-{version}-{device}.cdx.json"
            path.write_text(json.dumps(sbom(source / "deploy" / "locks", device, version), indent=1) + "\n")
    files = sorted(folder.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (folder / "SHA256SUMS").write_text(sums)
    return sorted(folder.iterdir())


def checked_version() -> str:
    """Return the version of the server.

    Raises:
        ReleaseError: the client or the chart has another version.
    """
    version = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "client/tenora_client/__init__.py").read_text(), re.MULTILINE)
    client = found[1] if found else "none"
    if ".dev" not in client and client != version:
        raise ReleaseError(f"The server has version {version} and the client {client}. Make them equal.")
    chart = ROOT / CHART / "Chart.yaml"
    if chart.exists() and f'appVersion: "{version}"' not in chart.read_text().splitlines():
        raise ReleaseError(f"{chart.name} has another appVersion than {version}. Make them equal.")
    return version


def sbom(locks: Path, device: str, version: str) -> dict[str, Any]:
    """Return the packages of an image with the hashes of their files, as a CycloneDX document.

    Licences are those of the packages in this environment. Of a GPU image's packages for CUDA, none is in it.
    """
    names = [f"{device}-image.txt", *(["cpu-torch.txt"] if device == "cpu" else [])]
    packages = sorted(package for name in names for package in _requirements((locks / name).read_text()))
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{release}",
            "name": name,
            "version": release,
            **({"licenses": licenses} if (licenses := _licenses(name, release)) else {}),
            "purl": f"pkg:pypi/{name}@{release}",
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": f"https://pypi.org/project/{name}/{release}/",
                    "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests],
                }
            ],
        }
        for name, release, digests in packages
    ]
    content = json.dumps(components)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": f"tenora-{device}", "version": version}},
        "components": components,
    }


def _requirements(lock: str) -> Iterator[tuple[str, str, list[str]]]:
    """Iterate over a lock's packages: name, version, and SHA-256 of each file that may be installed."""
    for line in lock.replace("\\\n", " ").splitlines():
        if found := re.match(r"([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", line):
            yield found[1].lower(), found[2], re.findall(r"--hash=sha256:([0-9a-f]{64})", line)


def _licenses(name: str, release: str) -> list[dict[str, Any]]:
    """Return the licences in the metadata of an installed package, or nothing if this release is not installed."""
    try:
        package = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    fields = package.json
    if fields["version"] != release:
        return []
    if "license_expression" in fields:
        return [{"expression": fields["license_expression"]}]
    name_line = str(fields.get("license", "")).strip().partition("\n")[0]
    classifiers = [line.split(" :: ") for line in package.get_all("Classifier") or () if line.startswith("License ::")]
    names = [words[-1] for words in classifiers if len(words) > 2]
    if not names and 0 < len(name_line) <= LONGEST_NAME:
        names = [name_line]
    return [{"license": {"name": each}} for each in names]


def _check_out(folder: Path) -> None:
    """Write the files of the commit HEAD, with its time."""
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    subprocess.run(["git", "-C", ROOT, "archive", f"--output={archive}", "HEAD"], check=True)  # noqa: S607
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)  # noqa: S607


def _build_wheel(project: Path, folder: Path) -> None:
    command = [str(UV), "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(_time()), "UV_SYSTEM_CERTS": "1"}
    subprocess.run([*command, "--out-dir", folder, project], check=True, env=environment)
    (folder / ".gitignore").unlink(missing_ok=True)


def _pack(source: Path, paths: list[str], target: Path, name: str) -> None:
    """Pack files into a compressed archive, below a folder with this name."""
    # Links of the chart lead to files next to it.
    command = [
        "tar",
        "--dereference",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        f"--mtime=@{_time()}",
    ]
    command += [f"--transform=s,^\\(\\./\\)\\?,{name}/,", "-C", str(source), "--use-compress-program=gzip -n"]
    subprocess.run([*command, "-cf", str(target), *paths], check=True)


def _time() -> int:
    """Return the time of the commit HEAD, in seconds since 1970."""
    return int(subprocess.check_output(["git", "-C", ROOT, "log", "-1", "--format=%ct"]))  # noqa: S607


if __name__ == "__main__":
    main()
