"""The files of a release, built from HEAD."""

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from deploy import release
from tests.support.pages import ROOT

LOCKS = ROOT / "deploy" / "locks"


def committed(*folders: str) -> set[str]:
    command = ["git", "-C", str(ROOT), "ls-tree", "-r", "--name-only", "HEAD", *folders]
    listed = subprocess.check_output(command, text=True)
    return set(listed.splitlines())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    release.build(folder)
    return folder


@pytest.mark.slow
def test_the_checksums_are_those_of_all_files(built: Path) -> None:
    check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=built, check=True)
    listed = {line.split()[1] for line in (built / "SHA256SUMS").read_text().splitlines()}
    assert listed | {"SHA256SUMS"} == {path.name for path in built.iterdir()}


@pytest.mark.slow
def test_the_wheel_has_the_server_and_nothing_else(built: Path, tmp_path: Path) -> None:
    (path,) = built.glob("tenora-*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        wheel.extractall(tmp_path)  # noqa: S202 - made above
    # Alembic's template and the source of the console are for developers.
    sources = {"migrations/script.py.mako", *committed("app/console/web")}
    assert names == committed("app", "adapters", "migrations") - sources
    code = "import app; assert app.__path__ == [sys.argv.pop(1)]; from tenora_client.cli.root import main; main()"
    run = [sys.executable, "-P", "-c", f"import sys; {code}", str(tmp_path / "app"), "server", "migrate"]
    environment = {"PYTHONPATH": str(tmp_path), "TENORA_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert "The schema is at revision" in done.stderr, done.stderr


@pytest.mark.slow
def test_the_image_can_be_built_from_its_context(built: Path) -> None:
    (path,) = built.glob("tenora-*-image.tar.gz")
    with tarfile.open(path) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "deploy/container/Dockerfile").read_text(), re.MULTILINE)
    assert {source for line in copied for source in line.split()} <= files
    assert {
        ".dockerignore",
        "deploy/container/Dockerfile",
        "deploy/container/compose.yml",
        "deploy/nginx/tls.conf",
    } <= files
    assert not any("secrets/" in name or "__pycache__" in name for name in files)


@pytest.mark.slow
def test_the_chart_needs_no_file_outside(built: Path) -> None:
    (path,) = built.glob("tenora-chart-*.tgz")
    with tarfile.open(path) as archive:
        assert all(member.isfile() or member.isdir() for member in archive)
        alerts = archive.extractfile("tenora/files/alerts.yml")
        assert alerts is not None
        assert alerts.read() == (ROOT / "deploy/prometheus/alerts.yml").read_bytes()


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_list_of_packages_is_the_lock(device: str) -> None:
    document = release.sbom(LOCKS, device, "1.2.3")
    lock = (LOCKS / f"{device}-image.txt").read_text()
    names = {line.partition("==")[0] for line in lock.splitlines() if re.match(r"[a-z0-9]", line)}
    found = {component["name"]: component for component in document["components"]}
    assert {name.partition("[")[0] for name in names} | {"torch"} == found.keys()
    assert found["fastapi"]["purl"].startswith("pkg:pypi/fastapi@")
    digests = [reference["hashes"] for component in found.values() for reference in component["externalReferences"]]
    assert all(digests)
    json.dumps(document)


def test_packages_of_the_cpu_image_have_their_licences() -> None:
    found = {one["name"]: one.get("licenses") for one in release.sbom(LOCKS, "cpu", "1.2.3")["components"]}
    assert found["torch"][0]["expression"].startswith("Apache-2.0 AND")
    assert found["httpx"] == [{"license": {"name": "BSD License"}}]
    assert found["tiktoken"] == [{"license": {"name": "MIT License"}}]
    # Their wheels name no licence.
    assert {name for name, licences in found.items() if not licences} == {"oss-harmony", "setuptools"}


def test_another_release_than_the_installed_one_has_no_licence() -> None:
    found = {one["name"]: one for one in release.sbom(LOCKS, "gpu", "1.2.3")["components"]}
    assert "licenses" not in found["torch"]
    assert "licenses" in found["fastapi"]


def test_a_release_needs_a_new_folder(tmp_path: Path) -> None:
    with pytest.raises(release.ReleaseError, match="exists already"):
        release.build(tmp_path)


def test_server_client_and_chart_have_one_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "client/tenora_client").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    module = tmp_path / "client/tenora_client/__init__.py"
    monkeypatch.setattr(release, "ROOT", tmp_path)
    module.write_text('__version__ = "1.2.3"\n')
    assert release.checked_version() == "1.2.3"
    chart = tmp_path / release.CHART / "Chart.yaml"
    chart.parent.mkdir(parents=True)
    chart.write_text('appVersion: "1.2.2"\n')
    with pytest.raises(release.ReleaseError, match="another appVersion"):
        release.checked_version()
    module.write_text('__version__ = "1.2.4"\n')
    with pytest.raises(release.ReleaseError, match="Make them equal"):
        release.checked_version()
