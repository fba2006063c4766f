"""Contract of every store's staging area, on a local folder and over the S3 protocol."""

import hashlib
import os
import random
import stat
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from moto.s3.models import S3Backend

from adapters.errors import BlobNotFound, DigestMismatch, InvalidName, StorageError, StoreUnavailable
from adapters.stores import open_store
from adapters.stores.base import BlobStore
from adapters.stores.staging import Staged, StagingArea
from tests.support.s3server import s3_client

FILE = "adapter_model.safetensors"


@dataclass
class Area:
    """A store and the files that its staging area is to receive."""

    kind: str
    store: BlobStore
    folder: Path
    data: bytes
    root: Path | None
    client: Any = None
    bucket: str = ""

    @property
    def staging(self) -> StagingArea:
        return self.store.staging

    @property
    def refusal(self) -> type[StorageError]:
        """Return the error for a part of an upload that is gone; moto answers 500 where S3 answers NoSuchUpload."""
        return BlobNotFound if self.kind == "local" else StoreUnavailable

    @property
    def parts(self) -> list[bytes]:
        size = self.staging.least_part_bytes
        return [self.data[start : start + size] for start in range(0, len(self.data), size)]

    @property
    def sizes(self) -> list[int]:
        return [len(part) for part in self.parts]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def begin(self) -> Staged:
        return self.staging.begin(uuid.uuid4().hex, FILE)

    def put(self, staged: Staged, number: int, data: bytes | None = None) -> None:
        data = self.parts[number - 1] if data is None else data
        source = self.folder / uuid.uuid4().hex
        source.write_bytes(data)
        self.staging.put_part(staged, number, source, hashlib.sha256(data).hexdigest())
        source.unlink()

    def whole(self) -> Staged:
        staged = self.begin()
        for number in range(len(self.parts), 0, -1):
            self.put(staged, number)
        assert self.staging.complete(staged, self.sizes) == ()
        return staged

    def left(self) -> list[str]:
        """Return the contents of the staging area."""
        if self.root is not None:
            return [str(path.relative_to(self.root)) for path in (self.root / "uploads").rglob("*")]
        multiparts = self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        objects = self.client.list_objects_v2(Bucket=self.bucket, Prefix="some/prefix/uploads").get("Contents", [])
        return [entry["Key"] for entry in (*multiparts, *objects)]


@pytest.fixture(params=["local", "s3"])
def area(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Area]:
    folder = tmp_path / "sources"
    folder.mkdir()
    random_bytes = random.Random(1).randbytes
    if request.param == "local":
        store = open_store(f"file://{tmp_path}/blobs", endpoint_url=None, region=None)
        yield Area("local", store, folder, random_bytes(2**19 + 77), tmp_path / "blobs")
        return
    endpoint, bucket = request.getfixturevalue("s3_endpoint"), f"tests-{uuid.uuid4().hex}"
    client = s3_client(endpoint)
    client.create_bucket(Bucket=bucket)
    store = open_store(f"s3://{bucket}/some/prefix", endpoint_url=endpoint, region="us-east-1")
    yield Area("s3", store, folder, random_bytes(2 * 5 * 2**20 + 77), None, client, bucket)


def test_parts_in_any_order_become_the_file_and_then_a_blob(area: Area, tmp_path: Path) -> None:
    staged = area.begin()
    assert area.staging.parts(staged) == {}
    for number in (3, 1):
        area.put(staged, number)
    assert area.staging.parts(staged) == {1: area.sizes[0], 3: area.sizes[2]}
    assert area.staging.complete(staged, area.sizes) == (2,)
    assert area.staging.parts(staged) == {1: area.sizes[0], 3: area.sizes[2]}
    area.put(staged, 2)
    assert area.staging.complete(staged, area.sizes) == ()
    assert area.staging.parts(staged) is None
    assert area.staging.complete(staged, area.sizes) == ()
    assert area.staging.fetch(staged, tmp_path / "copy") == area.digest
    assert (tmp_path / "copy").read_bytes() == area.data
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600
    assert area.store.size(area.digest) is None
    area.staging.adopt(staged, area.digest)
    area.staging.adopt(staged, area.digest)
    (tmp_path / "copy").unlink()
    area.staging.abort(staged)
    assert area.left() == []
    area.store.fetch(area.digest, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == area.data


def test_a_part_sent_again_replaces_the_earlier_one(area: Area, tmp_path: Path) -> None:
    staged = area.begin()
    area.put(staged, 1, b"\x01" * area.sizes[0])
    for number in (1, 2, 3):
        area.put(staged, number)
    area.staging.complete(staged, area.sizes)
    assert area.staging.fetch(staged, tmp_path / "copy") == area.digest


def test_a_part_of_another_size_is_missing(area: Area) -> None:
    staged = area.begin()
    for number in (1, 2, 3):
        area.put(staged, number)
    area.put(staged, 2, area.parts[1][:-1])
    assert area.staging.complete(staged, area.sizes) == (2,)


def test_parts_sent_at_once(area: Area, tmp_path: Path) -> None:
    staged = area.begin()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: area.put(staged, number), [1, 2, 3] * 3))
    area.staging.complete(staged, area.sizes)
    assert area.staging.fetch(staged, tmp_path / "copy") == area.digest


def test_a_file_completed_and_adopted_by_several_at_once(area: Area, tmp_path: Path) -> None:
    staged = area.begin()
    for number in (1, 2, 3):
        area.put(staged, number)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: area.staging.complete(staged, area.sizes), range(4))) == [()] * 4
    # moto answers 500 to a copy onto a key that is being written.
    with ThreadPoolExecutor(4 if area.kind == "local" else 1) as pool:
        list(pool.map(lambda _: area.staging.adopt(staged, area.digest), range(4)))
    area.store.fetch(area.digest, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == area.data


def test_a_file_completed_while_listing_parts_is_complete(area: Area, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = area.begin()
    for number in (1, 2, 3):
        area.put(staged, number)
    iterdir = Path.iterdir

    def meanwhile(folder: Path) -> Iterator[Path]:
        monkeypatch.undo()
        names = iterdir(folder)
        yield next(names)
        assert area.staging.complete(staged, area.sizes) == ()
        yield from names

    monkeypatch.setattr(Path, "iterdir", meanwhile)
    assert area.staging.complete(staged, area.sizes) == ()


def test_a_file_completed_by_another_is_waited_for(area: Area, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = area.begin()
    for number in (1, 2, 3):
        area.put(staged, number)
    gone, put = threading.Event(), S3Backend.put_object

    def late(*args: object, **kwargs: object) -> object:
        gone.set()
        time.sleep(0.3)
        return put(*args, **kwargs)

    monkeypatch.setattr(S3Backend, "put_object", late)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(area.staging.complete, staged, area.sizes)
        assert area.kind == "local" or gone.wait(10)
        assert area.staging.complete(staged, area.sizes) == ()
        assert first.result() == ()


def test_what_was_adopted_does_not_change_with_later_parts(area: Area, tmp_path: Path) -> None:
    staged = area.whole()
    area.staging.adopt(staged, area.digest)
    with pytest.raises(area.refusal):
        area.put(staged, 1, bytes(area.sizes[0]))
    area.store.fetch(area.digest, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == area.data


def test_a_file_is_adopted_only_under_its_own_digest(area: Area) -> None:
    staged = area.whole()
    with pytest.raises(DigestMismatch):
        area.staging.adopt(staged, "a" * 64)
    with pytest.raises(DigestMismatch):
        area.staging.adopt(staged, "../../escape")
    assert area.store.size("a" * 64) is None


def test_nothing_works_on_what_was_never_begun_or_is_aborted(area: Area, tmp_path: Path) -> None:
    aborted = area.begin()
    area.put(aborted, 1)
    area.staging.abort(aborted)
    area.staging.abort(aborted)
    assert area.left() == []
    for staged in (aborted, Staged(uuid.uuid4().hex, FILE, "no-such-token")):
        calls = [
            lambda staged=staged: area.staging.parts(staged),
            lambda staged=staged: area.staging.complete(staged, area.sizes),
            lambda staged=staged: area.staging.fetch(staged, tmp_path / "copy"),
            lambda staged=staged: area.staging.adopt(staged, area.digest),
        ]
        for call in calls:
            with pytest.raises(BlobNotFound):
                call()
        with pytest.raises(area.refusal):
            area.put(staged, 1)
        assert not (tmp_path / "copy").exists()


def test_an_incomplete_upload_cannot_be_fetched_or_adopted(area: Area, tmp_path: Path) -> None:
    staged = area.begin()
    area.put(staged, 1)
    with pytest.raises(BlobNotFound):
        area.staging.fetch(staged, tmp_path / "copy")
    with pytest.raises(BlobNotFound):
        area.staging.adopt(staged, hashlib.sha256(area.parts[0]).hexdigest())


def test_two_files_of_one_upload_are_apart(area: Area, tmp_path: Path) -> None:
    upload = uuid.uuid4().hex
    weights, config = area.staging.begin(upload, FILE), area.staging.begin(upload, "adapter_config.json")
    area.put(config, 1, b"{}")
    assert area.staging.parts(weights) == {}
    assert area.staging.complete(config, [2]) == ()
    assert area.staging.fetch(config, tmp_path / "config") == hashlib.sha256(b"{}").hexdigest()
    area.staging.abort(config)
    assert area.staging.parts(weights) == {}
    area.staging.abort(weights)
    assert area.left() == []


def test_the_sweep_takes_what_is_old_and_nobodys(area: Area) -> None:
    kept, multipart, whole = area.begin(), area.begin(), area.whole()
    area.put(multipart, 1)
    soon = datetime.now(UTC) + timedelta(minutes=1)
    keep = {kept.upload_id}
    assert area.staging.sweep(before=soon - timedelta(hours=1), keep=keep) == 0
    assert area.staging.parts(multipart) == {1: area.sizes[0]}
    assert area.staging.sweep(before=soon, keep=keep | {whole.upload_id}) == 1
    assert area.staging.sweep(before=soon, keep=keep) == 1
    assert area.staging.sweep(before=soon, keep=keep) == 0
    assert area.staging.parts(kept) == {}
    for staged in (multipart, whole):
        with pytest.raises(BlobNotFound):
            area.staging.parts(staged)


def test_the_sweep_of_an_area_without_uploads(area: Area) -> None:
    assert area.staging.sweep(before=datetime.now(UTC), keep=()) == 0


@pytest.mark.parametrize(
    ("upload", "file"),
    [("", FILE), ("../" * 10 + "ab", FILE), ("A" * 32, FILE), ("a" * 32, ""), ("a" * 32, ".."), ("a" * 32, "x/y")],
)
def test_a_malformed_name_reaches_no_path_and_no_key(area: Area, upload: str, file: str) -> None:
    with pytest.raises(InvalidName):
        area.staging.begin(upload, file)
    assert area.root is not None or area.left() == []


def test_parts_go_straight_to_the_bucket_by_url(area: Area, tmp_path: Path) -> None:
    staged = area.begin()
    if not area.staging.direct:
        with pytest.raises(StoreUnavailable):
            area.staging.part_url(staged, 1, size=1, sha256="a" * 64, lifetime_s=60)
        return
    with httpx.Client(trust_env=False) as http:
        for number, part in enumerate(area.parts, 1):
            checksum = hashlib.sha256(part).hexdigest()
            leave = area.staging.part_url(staged, number, size=len(part), sha256=checksum, lifetime_s=60)
            assert http.put(leave.url, content=part, headers=dict(leave.headers)).status_code == 200
    assert area.staging.complete(staged, area.sizes) == ()
    assert area.staging.fetch(staged, tmp_path / "copy") == area.digest


@pytest.mark.parametrize("area", ["s3"], indirect=True)
def test_a_signed_url_fits_one_part_size_and_checksum(area: Area) -> None:
    staged = area.begin()
    leave = area.staging.part_url(staged, 3, size=77, sha256="ab" * 32, lifetime_s=60)
    url = urlsplit(leave.url)
    query = {name: value for name, (value,) in parse_qs(url.query).items()}
    assert url.path == f"/{area.bucket}/some/prefix/uploads/{staged.upload_id}/{FILE}"
    assert (query["uploadId"], query["partNumber"], query["X-Amz-Expires"]) == (staged.token, "3", "60")
    signed = set(query["X-Amz-SignedHeaders"].split(";"))
    assert signed == {"host", "content-length", "x-amz-checksum-sha256"} == {"host", *leave.headers}
    others = [
        area.staging.part_url(staged, 2, size=77, sha256="ab" * 32, lifetime_s=60),
        area.staging.part_url(staged, 3, size=78, sha256="ab" * 32, lifetime_s=60),
        area.staging.part_url(staged, 3, size=77, sha256="ac" * 32, lifetime_s=60),
        area.staging.part_url(area.begin(), 3, size=77, sha256="ab" * 32, lifetime_s=60),
    ]
    signatures = {parse_qs(urlsplit(other.url).query)["X-Amz-Signature"][0] for other in (leave, *others)}
    assert len(signatures) == 5


def test_blobs_are_listed_with_sizes_and_times(area: Area, tmp_path: Path) -> None:
    assert list(area.store.list_blobs()) == []
    for data in (b"one", b"three"):
        (tmp_path / "source").write_bytes(data)
        area.store.put(hashlib.sha256(data).hexdigest(), tmp_path / "source")
        (tmp_path / "source").unlink()
    area.whole()
    listed = {info.digest: info for info in area.store.list_blobs()}
    assert {digest: info.size for digest, info in listed.items()} == {
        hashlib.sha256(b"one").hexdigest(): 3,
        hashlib.sha256(b"three").hexdigest(): 5,
    }
    age = datetime.now(UTC) - listed[hashlib.sha256(b"one").hexdigest()].modified_at
    assert timedelta(seconds=-2) < age < timedelta(minutes=5)


def test_what_is_no_blob_is_not_listed(area: Area) -> None:
    if area.root is not None:
        (area.root / "sha256" / "ab").mkdir()
        (area.root / "sha256" / "ab" / "notes.txt").write_text("not a blob")
    else:
        area.client.put_object(Bucket=area.bucket, Key="some/prefix/sha256/notes.txt", Body=b"not a blob")
    assert list(area.store.list_blobs()) == []


def test_an_object_beyond_one_copy_is_copied_in_ranges(
    area: Area, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.stores.s3_staging.COPY_BYTES", 6 * 2**20)
    staged = area.whole()
    area.staging.adopt(staged, area.digest)
    area.store.fetch(area.digest, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == area.data
    area.staging.abort(staged)
    assert area.left() == []


def test_a_filesystem_that_cannot_copy_in_the_kernel(
    area: Area, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(18, os.strerror(18))

    monkeypatch.setattr("os.copy_file_range", refuse)
    assert area.staging.fetch(area.whole(), tmp_path / "copy") == area.digest
