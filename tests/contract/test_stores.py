"""Contract of every blob store, on a local folder and over the S3 protocol."""

import hashlib
import random
import stat
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adapters.errors import BlobNotFound, DigestMismatch, StoreUnavailable
from adapters.stores import open_store
from adapters.stores.base import BlobStore
from adapters.stores.s3 import PART_BYTES
from tests.support.s3server import s3_client, write_blob

ABSENT = "0" * 64
BAD_DIGESTS = ["", "../../etc/passwd", "a" * 63, "a" * 65, "A" * 64, "a" * 64 + "\n", "/" * 64, "../" * 21 + "a"]


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "local":
        return open_store(f"file://{tmp_path}/blobs", endpoint_url=None, region=None)
    endpoint = request.getfixturevalue("s3_endpoint")
    bucket = f"tests-{uuid.uuid4().hex}"
    s3_client(endpoint).create_bucket(Bucket=bucket)
    return open_store(f"s3://{bucket}/some/prefix", endpoint_url=endpoint, region="us-east-1")


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 77])
def test_bytes_come_back_as_they_went(store: BlobStore, tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    digest = write_blob(tmp_path / "source", data)
    assert store.size(digest) is None
    assert store.put(digest, tmp_path / "source") is True
    (tmp_path / "source").unlink()
    assert store.size(digest) == size
    store.fetch(digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600


@pytest.mark.parametrize("size", [10, PART_BYTES + 1])
def test_a_second_put_says_that_the_blob_is_there(store: BlobStore, tmp_path: Path, size: int) -> None:
    digest = write_blob(tmp_path / "source", bytes(size))
    assert store.put(digest, tmp_path / "source") is True
    assert store.put(digest, tmp_path / "source") is False
    store.fetch(digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == bytes(size)


@pytest.mark.parametrize("size", [10, PART_BYTES + 1])
def test_bytes_that_are_not_the_digests_are_refused(store: BlobStore, tmp_path: Path, size: int) -> None:
    digest = hashlib.sha256(bytes(size)).hexdigest()
    write_blob(tmp_path / "source", bytes(size - 1) + b"\x01")
    with pytest.raises(DigestMismatch):
        store.put(digest, tmp_path / "source")
    assert store.size(digest) is None
    with pytest.raises(BlobNotFound):
        store.fetch(digest, tmp_path / "copy")
    # The refusal must not block a later upload of the right bytes.
    write_blob(tmp_path / "source", bytes(size))
    assert store.put(digest, tmp_path / "source") is True


def test_an_absent_blob_is_not_found_and_leaves_no_file(store: BlobStore, tmp_path: Path) -> None:
    with pytest.raises(BlobNotFound):
        store.fetch(ABSENT, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert store.size(ABSENT) is None


def test_delete_removes_and_may_be_repeated(store: BlobStore, tmp_path: Path) -> None:
    digest = write_blob(tmp_path / "source", b"some bytes")
    store.put(digest, tmp_path / "source")
    store.delete(digest)
    store.delete(digest)
    assert store.size(digest) is None
    assert store.put(digest, tmp_path / "source") is True


@pytest.mark.parametrize("digest", BAD_DIGESTS)
def test_a_malformed_digest_reaches_no_path_and_no_key(store: BlobStore, tmp_path: Path, digest: str) -> None:
    write_blob(tmp_path / "source", b"some bytes")
    with pytest.raises(DigestMismatch):
        store.put(digest, tmp_path / "source")
    with pytest.raises(DigestMismatch):
        store.fetch(digest, tmp_path / "copy")
    with pytest.raises(DigestMismatch):
        store.size(digest)
    with pytest.raises(DigestMismatch):
        store.delete(digest)
    assert not (tmp_path / "copy").exists()


def test_a_file_in_the_way_of_a_fetch_is_left_alone(store: BlobStore, tmp_path: Path) -> None:
    digest = write_blob(tmp_path / "source", b"some bytes")
    store.put(digest, tmp_path / "source")
    (tmp_path / "copy").write_bytes(b"precious")
    with pytest.raises(StoreUnavailable):
        store.fetch(digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"precious"


def test_writing_to_what_was_fetched_leaves_the_blob_alone(store: BlobStore, tmp_path: Path) -> None:
    digest = write_blob(tmp_path / "source", b"some bytes")
    store.put(digest, tmp_path / "source")
    store.fetch(digest, tmp_path / "copy")
    (tmp_path / "copy").write_bytes(b"other bytes")
    store.fetch(digest, tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == b"some bytes"


def test_a_missing_source_is_a_storage_error_without_its_path(store: BlobStore, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        store.put(ABSENT, tmp_path / "nowhere")
    assert str(tmp_path) not in str(caught.value)
    assert store.size(ABSENT) is None


@pytest.mark.parametrize("size", [1000, PART_BYTES + 1])
def test_puts_of_the_same_bytes_at_once_all_succeed(store: BlobStore, tmp_path: Path, size: int) -> None:
    sources = [tmp_path / f"source{number}" for number in range(4)]
    digests = {write_blob(source, bytes(size)) for source in sources}
    [digest] = digests
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda source: store.put(digest, source), sources))
    assert any(made)
    store.fetch(digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == bytes(size)


def test_one_source_put_twice_at_once_stays_one_blob(store: BlobStore, tmp_path: Path) -> None:
    digest = write_blob(tmp_path / "source", b"some bytes")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: store.put(digest, tmp_path / "source"), range(8)))
    assert any(made)
    store.fetch(digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"some bytes"


def test_a_store_that_answers_passes_its_check(store: BlobStore) -> None:
    store.check()


def test_the_first_claim_of_a_store_stands(store: BlobStore) -> None:
    assert store.owner() is None
    owners = [f"{number:032x}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        told = set(pool.map(store.claim, owners))
    assert len(told) == 1
    assert told <= set(owners)
    assert store.owner() == told.pop()
    store.take_over("f" * 32)
    assert store.owner() == store.claim("e" * 32) == "f" * 32
    assert list(store.list_blobs()) == []


def test_a_missing_bucket_has_no_owner_to_check(s3_endpoint: str) -> None:
    store = open_store("s3://no-such-bucket/p", endpoint_url=s3_endpoint, region="us-east-1")
    with pytest.raises(StoreUnavailable):
        store.owner()
