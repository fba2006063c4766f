"""Import of a folder and export of a version, as scripts do."""

import hashlib
import json
import resource
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tenora_client import exporting
from tests.support.cli import Tenora
from tests.support.hubserver import COMMIT

FILES = ("adapter_config.json", "adapter_model.safetensors")


@pytest.fixture
def tenant(tenora: Tenora, new_slug: Callable[[], str]) -> str:
    slug = f"export-{new_slug()}"
    tenora("tenants", "create", slug)
    return slug


def _import(tenora: Tenora, source: Path | str, tenant: str, *more: str) -> dict[str, object]:
    version: dict[str, object] = tenora.json(
        "adapters", "import", str(source), "--adapter", "pricing", "--tenant", tenant, *more
    )
    return version


def _export(tenora: Tenora, folder: Path, tenant: str, name: str = "pricing@1", exit_code: int = 0) -> str:
    result = tenora("adapters", "export", name, str(folder), "--tenant", tenant, exit_code=exit_code)
    return result.stderr


def test_what_was_imported_comes_out_again(tenora: Tenora, adapter_folder: Path, tenant: str, tmp_path: Path) -> None:
    version = _import(tenora, adapter_folder, tenant, "--label", "team=pricing")
    assert version["name"] == "pricing@1"
    folder = tmp_path / "new" / "folder"
    shown = tenora.json("adapters", "export", "pricing@1", str(folder), "--tenant", tenant)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    for name in FILES:
        data = (adapter_folder / name).read_bytes()
        assert (folder / name).read_bytes() == data
        assert shown["digests"][name] == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


def test_an_archive_is_imported_too(tenora: Tenora, adapter_folder: Path, tenant: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "adapter.tar.gz", "w:gz") as tar:
        tar.add(adapter_folder, arcname="my-adapter")
    archived = _import(tenora, tmp_path / "adapter.tar.gz", tenant)
    assert _import(tenora, adapter_folder, tenant)["digest"] == archived["digest"]


def test_a_server_that_may_not_import_says_which_setting(tenora: Tenora, tenant: str) -> None:
    source = f"hf://org/repo@{COMMIT}"
    result = tenora("adapters", "import", source, "--adapter", "pricing", "--tenant", tenant, exit_code=1)
    assert "TENORA_IMPORTS__HF" in result.stderr


def test_a_source_that_is_not_there(tenora: Tenora, tenant: str, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    result = tenora("adapters", "import", absent, "--adapter", "pricing", "--tenant", tenant, exit_code=2)
    assert absent in result.stderr


def test_a_folder_that_has_files_is_left_alone(
    tenora: Tenora, adapter_folder: Path, tenant: str, tmp_path: Path
) -> None:
    _import(tenora, adapter_folder, tenant)
    (tmp_path / "mine").write_text("mine")
    assert "Give a new or an empty folder" in _export(tenora, tmp_path, tenant, exit_code=2)
    assert (tmp_path / "mine").read_text() == "mine"
    empty = tmp_path / "empty"
    empty.mkdir()
    _export(tenora, empty, tenant)
    assert len(list(empty.iterdir())) == 2


def test_a_version_that_is_not_there_leaves_nothing(tenora: Tenora, tenant: str, tmp_path: Path) -> None:
    assert "404" in _export(tenora, tmp_path / "new", tenant, "pricing@9", exit_code=1)
    assert "Write pricing@N" in _export(tenora, tmp_path / "new", tenant, "pricing", exit_code=2)
    assert list(tmp_path.iterdir()) == []


def test_other_bytes_than_the_digest_says_are_not_kept(
    tenora: Tenora, adapter_folder: Path, tenant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _import(tenora, adapter_folder, tenant)
    monkeypatch.setattr(exporting, "content_digest", lambda config, weights: "0" * 64)
    assert "do not match the version's digest sha256:" in _export(tenora, tmp_path / "new", tenant, exit_code=1)
    monkeypatch.setattr(exporting, "_header_digest", lambda header: bytes(32))
    assert "does not match the digest" in _export(tenora, tmp_path / "new", tenant, exit_code=1)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(tenora: Tenora, adapter_folder: Path, tenant: str, tmp_path: Path) -> None:
    """A limit of the size of files stands in for the disk: the same call fails in the same way."""
    _import(tenora, adapter_folder, tenant)

    def no_space() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    folder = tmp_path / "out" / "adapter"
    program = [sys.executable, "-B", "-m", "tenora_client", "adapters", "export", "pricing@1", str(folder)]
    done = subprocess.run(
        [*program, "--tenant", tenant],
        env=tenora.environment | {"XDG_CONFIG_HOME": str(tmp_path)},
        preexec_fn=no_space,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: Cannot write {folder}: File too large. Nothing was kept. Free space or mend the folder's "
        "permissions, then run the command again.\n"
    )
    assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("sha-256=:AAAA:", bytes(3)),
        ("md5=:AAAA:, sha-256=:AAAA:", bytes(3)),
        ("sha-256=:AAA:", None),
        ("sha-512=:AAAA:", None),
        ("", None),
    ],
)
def test_digests_in_headers(header: str, expected: bytes | None) -> None:
    assert exporting._header_digest(header) == expected


def test_json_is_one_object(tenora: Tenora, adapter_folder: Path, tenant: str, tmp_path: Path) -> None:
    _import(tenora, adapter_folder, tenant)
    result = tenora("adapters", "export", "pricing@1", str(tmp_path / "new"), "--tenant", tenant, "--json")
    assert set(json.loads(result.stdout)) == {"version", "folder", "digests"}
