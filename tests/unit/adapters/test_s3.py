import base64
import hashlib
import logging
import random
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.errors import BlobNotFound, DigestMismatch, InvalidName, StoreUnavailable
from adapters.stores import s3
from adapters.stores.s3 import PART_BYTES, S3Store
from tests.support.s3server import (
    CuttingProxy,
    Script,
    fake_credentials,
    s3_client,
    s3_server,
    scripted_server,
    write_blob,
)

ABSENT = "0" * 64
SECRET = "account 123456789012 on host-17"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def client(endpoint: str) -> Any:
    return s3_client(endpoint)


@pytest.fixture
def bucket(client: Any) -> str:
    name = f"tests-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=name)
    return name


@pytest.fixture
def proxy(endpoint: str) -> Iterator[CuttingProxy]:
    with CuttingProxy(endpoint) as proxy:
        yield proxy


def open_s3(endpoint: str, bucket: str = "bucket", prefix: str = "p", timeout_s: float = 5.0) -> S3Store:
    return S3Store(bucket, prefix, endpoint_url=endpoint, region="us-east-1", timeout_s=timeout_s)


def vendor_error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode()


def unfinished(client: Any, bucket: str) -> list[Any]:
    return client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    fake_credentials(monkeypatch)
    with scripted_server(Script()) as script:
        yield script


@pytest.mark.parametrize(("prefix", "start"), [("", ""), ("a/b", "a/b/")])
def test_keys_hold_the_prefix_and_the_digest(endpoint: str, client, bucket: str, tmp_path: Path, prefix, start) -> None:
    digest = write_blob(tmp_path / "source", b"some bytes")
    open_s3(endpoint, bucket, prefix).put(digest, tmp_path / "source")
    assert [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket)["Contents"]] == [f"{start}sha256/{digest}"]


def test_a_large_object_goes_in_parts_with_checksums(endpoint: str, client, bucket: str, tmp_path: Path) -> None:
    digest = write_blob(tmp_path / "source", bytes(PART_BYTES + 1))
    open_s3(endpoint, bucket, "").put(digest, tmp_path / "source")
    head = client.head_object(Bucket=bucket, Key=f"sha256/{digest}", ChecksumMode="ENABLED")
    parts = [hashlib.sha256(bytes(size)).digest() for size in (PART_BYTES, 1)]
    whole = base64.b64encode(hashlib.sha256(b"".join(parts)).digest()).decode()
    # S3's composite checksum is the hash of the hashes of the parts.
    assert head["ChecksumSHA256"].removesuffix("-2") == whole
    assert head["ETag"].strip('"').endswith("-2")


def test_a_large_upload_of_wrong_bytes_is_aborted(endpoint: str, client, bucket: str, tmp_path: Path) -> None:
    write_blob(tmp_path / "source", bytes(PART_BYTES + 1))
    with pytest.raises(DigestMismatch):
        open_s3(endpoint, bucket).put("a" * 64, tmp_path / "source")
    assert unfinished(client, bucket) == []
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


@pytest.mark.parametrize("size", [3 * 2**20, PART_BYTES + 3 * 2**20])
def test_an_upload_that_is_cut_publishes_nothing(
    endpoint: str, client, bucket: str, proxy: CuttingProxy, tmp_path: Path, size: int
) -> None:
    digest = write_blob(tmp_path / "source", bytes(size))
    proxy.up = 2**20
    store = open_s3(proxy.url, bucket)
    with pytest.raises(StoreUnavailable):
        store.put(digest, tmp_path / "source")
    assert store.size(digest) is None
    assert unfinished(client, bucket) == []
    proxy.up = None
    assert store.put(digest, tmp_path / "source") is True


def test_a_failed_abort_is_logged_and_the_first_failure_reported(
    bucket: str, proxy: CuttingProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = write_blob(tmp_path / "source", bytes(PART_BYTES + 1))
    store = open_s3(proxy.url, bucket)
    abort = store._client.abort_multipart_upload

    def unreachable_abort(**arguments: Any) -> Any:
        proxy.up = 0
        return abort(**arguments)

    monkeypatch.setattr(store._client, "abort_multipart_upload", unreachable_abort)
    proxy.up = 2**20
    with pytest.raises(StoreUnavailable):
        store.put(digest, tmp_path / "source")
    assert "could not be aborted" in caplog.text


def test_a_download_that_is_cut_goes_on_where_it_was(bucket: str, proxy: CuttingProxy, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(4 * 2**20)
    digest = write_blob(tmp_path / "source", data)
    store = open_s3(proxy.url, bucket)
    store.put(digest, tmp_path / "source")
    proxy.down, proxy.cuts = 2 * 2**20, 1
    store.fetch(digest, tmp_path / "copy")
    assert proxy.cuts == 0
    assert (tmp_path / "copy").read_bytes() == data


def test_a_download_that_is_cut_each_time_leaves_no_file(bucket: str, proxy: CuttingProxy, tmp_path: Path) -> None:
    digest = write_blob(tmp_path / "source", bytes(4 * 2**20))
    store = open_s3(proxy.url, bucket)
    store.put(digest, tmp_path / "source")
    # Each of the three tries resumes where the previous one was cut.
    proxy.down = 2**20
    with pytest.raises(StoreUnavailable):
        store.fetch(digest, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def assert_every_call_fails(store: S3Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    digest = write_blob(tmp_path / "source", b"some bytes")
    calls = {
        "put": lambda: store.put(digest, tmp_path / "source"),
        "fetch": lambda: store.fetch(digest, tmp_path / "copy"),
        "size": lambda: store.size(digest),
        "delete": lambda: store.delete(digest),
        "check": store.check,
    }
    for name, call in calls.items():
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert SECRET not in str(caught.value), name
        assert caught.value.__cause__ is None
    assert not (tmp_path / "copy").exists()
    assert SECRET not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("adapters"))


def test_a_store_that_is_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog) -> None:
    fake_credentials(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert_every_call_fails(open_s3(f"http://127.0.0.1:{port}"), tmp_path, caplog)


@pytest.mark.slow
def test_a_store_that_stalls(script: Script, tmp_path: Path, caplog) -> None:
    script.stall = True
    assert_every_call_fails(open_s3(script.url, timeout_s=0.1), tmp_path, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("status", [301, 400, 403, 500, 503])
def test_a_store_that_refuses(script: Script, tmp_path: Path, caplog, status: int) -> None:
    script.answers = [(status, vendor_error("SomeCode"))]
    assert_every_call_fails(open_s3(script.url), tmp_path, caplog)


def test_a_body_that_stalls_half_way(endpoint: str, bucket: str, proxy: CuttingProxy, tmp_path: Path) -> None:
    digest = write_blob(tmp_path / "source", bytes(4 * 2**20))
    open_s3(endpoint, bucket).put(digest, tmp_path / "source")
    proxy.down, proxy.stall = 2**20, True
    with pytest.raises(StoreUnavailable):
        open_s3(proxy.url, bucket, timeout_s=0.3).fetch(digest, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_200_from_something_that_is_no_s3_server(script: Script, tmp_path: Path) -> None:
    script.answers = [(404, b""), (200, b"<html>sign in to the guest network</html>")]
    digest = write_blob(tmp_path / "source", bytes(PART_BYTES + 1))
    with pytest.raises(StoreUnavailable):
        open_s3(script.url).put(digest, tmp_path / "source")


def test_a_bucket_that_is_not_there(endpoint: str, tmp_path: Path) -> None:
    store = open_s3(endpoint, "no-such-bucket")
    for call in (store.check, lambda: store.fetch(ABSENT, tmp_path / "copy")):
        with pytest.raises(StoreUnavailable):
            call()


def test_an_object_that_is_not_there_is_told_from_a_refusal(script: Script, tmp_path: Path) -> None:
    script.answers = [(404, vendor_error("NoSuchKey"))]
    with pytest.raises(BlobNotFound) as caught:
        open_s3(script.url).fetch(ABSENT, tmp_path / "copy")
    assert SECRET not in str(caught.value)


def test_a_put_is_conditional_and_carries_the_digest(script: Script, tmp_path: Path) -> None:
    script.answers = [(412, vendor_error("PreconditionFailed"))]
    digest = write_blob(tmp_path / "source", b"some bytes")
    assert open_s3(script.url).put(digest, tmp_path / "source") is False
    [(method, headers)] = script.asked
    assert method == "PUT"
    assert headers["if-none-match"] == "*"
    assert base64.b64decode(headers["x-amz-checksum-sha256"]).hex() == digest


def test_a_conflict_with_another_write_is_tried_again(script: Script, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(s3, "_CONFLICT_PAUSES_S", (0.0, 0.0))
    script.answers = [(409, vendor_error("ConditionalRequestConflict")), (200, b"")]
    digest = write_blob(tmp_path / "source", b"some bytes")
    assert open_s3(script.url).put(digest, tmp_path / "source") is True
    assert len(script.asked) == 2


@pytest.mark.slow
def test_a_conflict_that_lasts_is_given_up(script: Script, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(s3, "_CONFLICT_PAUSES_S", (0.0, 0.0))
    script.answers = [(409, vendor_error("ConditionalRequestConflict"))]
    digest = write_blob(tmp_path / "source", b"some bytes")
    with pytest.raises(StoreUnavailable):
        open_s3(script.url).put(digest, tmp_path / "source")
    assert len(script.asked) == 3


def test_a_large_put_that_loses_the_race_is_already_there(
    endpoint: str, client, bucket: str, tmp_path: Path, monkeypatch
) -> None:
    digest = write_blob(tmp_path / "source", bytes(PART_BYTES + 1))
    winner, loser = open_s3(endpoint, bucket), open_s3(endpoint, bucket)
    monkeypatch.setattr(loser, "size", lambda _: winner.put(digest, tmp_path / "source") and None)
    assert loser.put(digest, tmp_path / "source") is False
    assert winner.size(digest) == PART_BYTES + 1
    assert unfinished(client, bucket) == []


def test_no_credentials_are_a_storage_error(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    fake_credentials(monkeypatch)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreUnavailable):
        open_s3("http://127.0.0.1:9").check()
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(StoreUnavailable):
        open_s3("http://127.0.0.1:9")


def test_an_endpoint_that_is_no_url_is_named() -> None:
    with pytest.raises(InvalidName) as caught:
        open_s3("user:hunter2@somewhere")
    assert caught.value.field == "s3_endpoint_url"
    assert "hunter2" not in str(caught.value)


def test_secrets_are_never_logged(endpoint: str, bucket: str, tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.DEBUG, logger="adapters")
    digest = write_blob(tmp_path / "source", b"some bytes")
    open_s3(endpoint, bucket).put(digest, tmp_path / "source")
    with pytest.raises(StoreUnavailable):
        open_s3(endpoint, "no-such-bucket").check()
    assert "tests-secret-key" not in caplog.text
    assert "tests-access-key" not in caplog.text
