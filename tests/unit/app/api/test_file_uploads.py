"""OpenAI's uploads of files in parts over HTTP."""

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.file_calls import ABSENT_PART, ABSENT_UPLOAD, add_part, begin, content, create
from tests.support.site import Site, Unit, make_unit, running_site

PARTS = (b"a" * 100_000, b"b" * 5, b"c" * 70_000)
WHOLE = b"".join(PARTS)


@pytest.fixture
def client(site: Site, unit: Unit) -> Iterator[httpx.Client]:
    with site.client(unit.key) as client:
        yield client


@pytest.fixture(scope="module")
def small(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with small limits."""
    batch = {"file_bytes": 10_000, "tenant_bytes": 25_000, "tenant_files": 4, "local_bytes": 20_000}
    home = tmp_path_factory.mktemp("small-home")
    with running_site(home, base, batch=batch, limits={"open_uploads": 3}) as site:
        yield site


@pytest.fixture
def limited(small: Site) -> Iterator[httpx.Client]:
    with small.client(small.admin_key) as admin:
        unit = make_unit(admin)
    with small.client(unit.key) as client:
        yield client


def error(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.05)


def complete(client: httpx.Client, upload_id: str, part_ids: list[str], **fields: str) -> httpx.Response:
    return client.post(f"/v1/uploads/{upload_id}/complete", json={"part_ids": part_ids, **fields})


def test_parts_in_any_order_become_one_file(site: Site, client: httpx.Client) -> None:
    before = site.blobs
    upload = begin(client, len(WHOLE), filename="../in.jsonl")
    assert (upload["status"], upload["file"], upload["filename"]) == ("pending", None, "in.jsonl")
    with ThreadPoolExecutor() as pool:
        part_ids = list(pool.map(lambda part: add_part(client, upload["id"], part), PARTS))
    assert len(site.blobs - before) == 3
    md5 = hashlib.md5(WHOLE, usedforsecurity=False).hexdigest()
    done = complete(client, upload["id"], part_ids, md5=md5.upper()).json()
    assert (done["status"], done["bytes"], done["file"]["bytes"]) == ("completed", len(WHOLE), len(WHOLE))
    assert content(client, done["file"]["id"]) == WHOLE
    assert client.get("/v1/files").json()["data"] == [done["file"]]
    assert complete(client, upload["id"], part_ids).json() == done
    until(lambda: len(site.blobs - before) == 1)
    assert error(client.post(f"/v1/uploads/{upload['id']}/cancel"), 409)["param"] == "upload_id"


def test_concurrent_completions_make_one_file(site: Site, client: httpx.Client) -> None:
    before = site.blobs
    upload = begin(client, len(WHOLE))
    part_ids = [add_part(client, upload["id"], part) for part in PARTS]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: complete(client, upload["id"], part_ids), range(4)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["file"]["id"] for answer in answers}) == 1
    assert len(client.get("/v1/files").json()["data"]) == 1
    until(lambda: len(site.blobs - before) == 1)


def test_parts_that_do_not_fit_are_refused_and_can_be_corrected(client: httpx.Client) -> None:
    upload, other = begin(client, len(WHOLE)), begin(client, 5)
    part_ids = [add_part(client, upload["id"], part) for part in PARTS]
    foreign = add_part(client, other["id"], b"other")
    for wrong, param in (
        (part_ids[:2], "part_ids"),
        ([*part_ids, part_ids[0]], "part_ids"),
        ([*part_ids, ABSENT_PART], "part_ids"),
        ([*part_ids, foreign], "part_ids"),
        ([*part_ids[:2], "x\x00"], "part_ids"),
    ):
        assert error(complete(client, upload["id"], wrong), 400)["param"] == param
    assert error(complete(client, upload["id"], part_ids, md5="0" * 32), 400)["param"] == "md5"
    assert error(complete(client, upload["id"], []), 422)["param"] == "part_ids"
    # A part that was sent twice is left out, as a client does after a lost answer.
    again = add_part(client, upload["id"], PARTS[1])
    assert complete(client, upload["id"], [part_ids[0], again, part_ids[2]]).json()["file"]["bytes"] == len(WHOLE)


def test_a_cancelled_upload_leaves_nothing(site: Site, client: httpx.Client) -> None:
    before = site.blobs
    upload = begin(client, 5)
    part = add_part(client, upload["id"], b"12345")
    for _ in range(2):
        assert client.post(f"/v1/uploads/{upload['id']}/cancel").json()["status"] == "cancelled"
    until(lambda: not site.blobs - before)
    assert "cancelled" in error(complete(client, upload["id"], [part]), 409)["message"]
    refused = client.post(f"/v1/uploads/{upload['id']}/parts", files={"data": ("part", b"1")})
    assert error(refused, 409)["param"] == "upload_id"


def test_a_completed_upload_whose_file_was_deleted_is_over(client: httpx.Client) -> None:
    upload = begin(client, 5)
    part = add_part(client, upload["id"], b"12345")
    file = complete(client, upload["id"], [part]).json()["file"]
    assert client.delete(f"/v1/files/{file['id']}").status_code == 200
    assert "was deleted" in error(complete(client, upload["id"], [part]), 409)["message"]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"bytes": 0}, 400, "bytes"),
        ({"bytes": -1}, 400, "bytes"),
        ({"bytes": 10**12}, 413, "bytes"),
        ({"bytes": "5"}, 422, "bytes"),
        ({"purpose": "fine-tune"}, 400, "purpose"),
        ({"expires_after": {"anchor": "created_at", "seconds": 3599}}, 400, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now", "seconds": 3600}}, 400, "expires_after.anchor"),
        ({"expires_after": {"seconds": 3600}}, 422, "expires_after.anchor"),
        ({"unknown": 1}, 422, "unknown"),
        ({"mime_type": "x" * 101}, 422, "mime_type"),
    ],
)
def test_wrong_announcements_are_refused(client: httpx.Client, fields: dict[str, Any], status: int, param: str) -> None:
    body = {"bytes": 5, "filename": "in.jsonl", "mime_type": "application/jsonl", "purpose": "batch"} | fields
    assert error(client.post("/v1/uploads", json=body), status)["param"] == param


def test_the_lifetime_counts_from_the_file(client: httpx.Client) -> None:
    upload = begin(client, 5, expires_after={"anchor": "created_at", "seconds": 7200})
    file = complete(client, upload["id"], [add_part(client, upload["id"], b"12345")]).json()["file"]
    assert file["expires_at"] - file["created_at"] == 7200


def test_open_uploads_count_as_files(limited: httpx.Client) -> None:
    create(limited, b"x" * 10_000)
    upload = begin(limited, 10_000)
    refused = limited.post(
        "/v1/uploads", json={"bytes": 5001, "filename": "x", "mime_type": "text/plain", "purpose": "batch"}
    )
    assert error(refused, 403)["code"] == "quota_exceeded"
    for size in (4000, 1000):
        begin(limited, size)
    refused = limited.post(
        "/v1/uploads", json={"bytes": 1, "filename": "x", "mime_type": "text/plain", "purpose": "batch"}
    )
    assert error(refused, 429)["code"] == "too_many_open"
    limited.post(f"/v1/uploads/{upload['id']}/cancel")
    begin(limited, 10_000)


def test_parts_have_limits_of_their_own(limited: httpx.Client) -> None:
    upload = begin(limited, 100)
    for size in (100, 99):
        add_part(limited, upload["id"], b"x" * size)
    path = f"/v1/uploads/{upload['id']}/parts"
    refused = error(limited.post(path, files={"data": ("part", b"xx")}), 413)
    assert refused["message"] == "The part is larger than the 1 bytes that are left for it."
    add_part(limited, upload["id"], b"x")
    assert error(limited.post(path, files={"data": ("part", b"x")}), 413)["param"] == "data"
    other = begin(limited, 1)["id"]
    for sent in ({"files": {"other": ("part", b"x")}}, {"files": {"data": ("part", b"")}}, {"json": {}}):
        assert limited.post(f"/v1/uploads/{other}/parts", **sent).status_code == 400, sent


@pytest.mark.parametrize("identity", [ABSENT_UPLOAD, "upload_x", "x", "%00"])
def test_absent_uploads_are_not_found(client: httpx.Client, identity: str) -> None:
    path = f"/v1/uploads/{identity}"
    assert error(client.post(f"{path}/parts", files={"data": ("part", b"x")}), 404)["param"] == "upload_id"
    assert error(complete(client, identity, ["x"]), 404)["param"] == "upload_id"
    assert error(client.post(f"{path}/cancel"), 404)["param"] == "upload_id"
