import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adapters.errors import DigestMismatch, InvalidName, StoreUnavailable
from adapters.stores import open_store
from adapters.stores.local import LocalStore
from tests.support.s3server import write_blob

PROJECT = Path(__file__).parents[3]
LIMITED_PUT = """
import json, resource, sys
from pathlib import Path
from adapters.errors import AdapterError
from adapters.stores.local import LocalStore

root, source, digest = sys.argv[1:]
store = LocalStore(Path(root))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.put(digest, Path(source))
except AdapterError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}


def test_blobs_are_private_and_lie_under_their_first_two_digits(tmp_path: Path) -> None:
    digest = write_blob(tmp_path / "source", b"some bytes")
    (tmp_path / "source").chmod(0o644)
    LocalStore(tmp_path / "a" / "b").put(digest, tmp_path / "source")
    assert modes(tmp_path / "a") == {
        ".": 0o700,
        "b": 0o700,
        "b/tmp": 0o700,
        "b/sha256": 0o700,
        f"b/sha256/{digest[:2]}": 0o700,
        f"b/sha256/{digest[:2]}/{digest}": 0o600,
    }


def test_a_spool_file_is_kept_rather_than_copied(tmp_path: Path) -> None:
    digest = write_blob(tmp_path / "source", b"some bytes")
    inode = (tmp_path / "source").stat().st_ino
    LocalStore(tmp_path / "store").put(digest, tmp_path / "source")
    assert (tmp_path / "store" / "sha256" / digest[:2] / digest).stat().st_ino == inode


@pytest.mark.parametrize("link", [Path.hardlink_to, Path.symlink_to])
def test_a_renamed_file_is_a_copy_not_a_link_to_the_blob(tmp_path: Path, link) -> None:
    digest = write_blob(tmp_path / "precious", b"some bytes")
    link(tmp_path / "source", tmp_path / "precious")
    store = LocalStore(tmp_path / "store")
    store.put(digest, tmp_path / "source")
    (tmp_path / "precious").write_bytes(b"changed later")
    store.fetch(digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"some bytes"


def test_a_source_on_another_filesystem_is_copied(tmp_path: Path) -> None:
    shared_memory = Path("/dev/shm")  # noqa: S108 - the one other filesystem that is there without privileges
    if not shared_memory.is_dir() or shared_memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.fail("this test needs /dev/shm as a filesystem of its own")
    source = shared_memory / f"tenora-tests-{os.getpid()}"
    try:
        digest = write_blob(source, b"some bytes")
        assert LocalStore(tmp_path / "store").put(digest, source) is True
    finally:
        source.unlink(missing_ok=True)
    assert (tmp_path / "store" / "sha256" / digest[:2] / digest).read_bytes() == b"some bytes"


def test_a_refused_upload_leaves_nothing_behind(tmp_path: Path) -> None:
    write_blob(tmp_path / "source", b"some bytes")
    with pytest.raises(DigestMismatch):
        LocalStore(tmp_path / "store").put("a" * 64, tmp_path / "source")
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_full_disk_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """The kernel refuses the write for real: a file size limit needs no privileges, unlike a full filesystem."""
    digest = write_blob(tmp_path / "source", bytes(300_000))
    (tmp_path / "second name").hardlink_to(tmp_path / "source")  # makes the store copy
    command = [sys.executable, "-c", LIMITED_PUT, str(tmp_path / "store"), str(tmp_path / "source"), digest]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    kind, message = json.loads(result.stdout)
    assert kind == "DiskFull"
    assert str(tmp_path) not in message
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
    assert LocalStore(tmp_path / "store").put(digest, tmp_path / "source") is True


def test_opening_sweeps_what_is_a_day_old_and_nothing_younger(tmp_path: Path) -> None:
    LocalStore(tmp_path)
    old, young, old_directory = (tmp_path / "tmp" / name for name in ("old", "young", "old directory"))
    old.write_bytes(b"left by a dead process")
    young.write_bytes(b"being written")
    old_directory.mkdir()
    (old_directory / "file").touch()
    two_days_ago = time.time() - 2 * 24 * 3600
    for path in (old, old_directory):
        os.utime(path, (two_days_ago, two_days_ago))
    LocalStore(tmp_path)
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["young"]


def test_a_folder_that_is_gone_fails_the_check(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable):
        store.check()


def test_a_root_that_is_a_file_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable):
        LocalStore(tmp_path / "file")


def test_a_file_url_may_have_escapes(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/with%20space", endpoint_url=None, region=None)
    store.check()
    assert (tmp_path / "with space" / "sha256").is_dir()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/just/a/path",
        "file://relative/path",
        "file:relative",
        "s3://",
        "s3:///prefix",
        "https://bucket/prefix",
        "s3://bucket/prefix?x=1",
        "file:///a#b",
        "file:///a%00b",
        "s3://[bucket",
    ],
)
def test_other_urls_are_refused_and_shown(url: str) -> None:
    with pytest.raises(InvalidName) as caught:
        open_store(url, endpoint_url=None, region=None)
    assert (caught.value.field, caught.value.found) == ("store_url", url)
    assert "s3://bucket/prefix" in caught.value.allowed


def test_credentials_in_a_url_are_refused_and_not_shown() -> None:
    with pytest.raises(InvalidName) as caught:
        open_store("s3://key:hunter2@bucket/prefix", endpoint_url=None, region=None)
    assert "hunter2" not in str(caught.value)
