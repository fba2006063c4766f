"""OpenAI's files over HTTP: create, list, show, download, delete, and what clients get wrong."""

import asyncio
import base64
import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from app.database.session import Database
from app.database.tables import audit
from app.database.urls import database_url
from tests.support.file_calls import ABSENT_FILE, LINE, content, create, form
from tests.support.site import Site, Unit, make_unit, running_site

DAY_S = 24 * 3600


@pytest.fixture
def client(site: Site, unit: Unit) -> Iterator[httpx.Client]:
    with site.client(unit.key) as client:
        yield client


@pytest.fixture(scope="module")
def small(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with small limits."""
    limits = {"file_bytes": 10_000, "tenant_bytes": 25_000, "tenant_files": 3, "local_bytes": 20_000}
    with running_site(tmp_path_factory.mktemp("small-home"), base, batch=limits) as site:
        yield site


@pytest.fixture
def limited(small: Site) -> Iterator[httpx.Client]:
    """A client of a new tenant of the server with small limits."""
    with small.client(small.admin_key) as admin:
        unit = make_unit(admin)
    with small.client(unit.key) as client:
        yield client


def error(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


async def audit_rows(site: Site, tenant: str) -> list[tuple[str, str]]:
    """Return action and content of a tenant's audit rows."""
    database = Database(database_url(site.settings))
    async with database.read() as connection:
        rows = await connection.execute(select(audit).where(audit.c.tenant == tenant).order_by(audit.c.id))
        found = [(row.action, f"{row.subject} {row.before} {row.after}") for row in rows]
    await database.close()
    return found


def finished(client: httpx.Client, deletion: str) -> dict[str, Any]:
    """Wait for the end of a deletion and return its report."""
    while True:
        answer = client.get(f"/v1/deletions/{deletion}")
        assert answer.status_code == 200, answer.text
        report: dict[str, Any] = answer.json()
        if report["state"] == "finished":
            return report
        time.sleep(0.05)


def test_a_file_comes_back_as_it_was_sent(client: httpx.Client) -> None:
    sent = os.urandom(3_000_000) + LINE
    created = create(client, sent)
    assert created["bytes"] == len(sent)
    assert created["expires_at"] - created["created_at"] == 30 * DAY_S
    assert (created["object"], created["purpose"], created["filename"]) == ("file", "batch", "in.jsonl")
    assert client.get(f"/v1/files/{created['id']}").json() == created
    answer = client.get(f"/v1/files/{created['id']}/content")
    assert answer.content == sent
    digest = base64.b64encode(hashlib.sha256(sent).digest()).decode()
    assert answer.headers["repr-digest"] == f"sha-256=:{digest}:"
    assert answer.headers["content-disposition"] == 'attachment; filename="in.jsonl"'
    assert answer.headers["content-length"] == str(len(sent))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_store_holds_compressed_bytes_that_no_other_file_has(site: Site, client: httpx.Client) -> None:
    before = site.blobs
    for _ in range(2):
        create(client, LINE * 1000)
    added = site.blobs - before
    assert len(added) == 2
    sizes = [path.stat().st_size for path in (site.settings.home / "blobs").rglob("*") if path.name in added]
    assert max(sizes) < len(LINE) * 100


def test_the_list_has_pages_in_both_orders(client: httpx.Client) -> None:
    ids = [create(client)["id"] for _ in range(5)]
    listed = client.get("/v1/files").json()
    assert [file["id"] for file in listed["data"]] == ids[::-1]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert (listed["first_id"], listed["last_id"]) == (ids[4], ids[0])
    for order, expected in (("asc", ids), ("desc", ids[::-1])):
        page = client.get("/v1/files", params={"limit": 2, "order": order}).json()
        assert ([file["id"] for file in page["data"]], page["has_more"]) == (expected[:2], True)
        # The list goes on behind a file that was deleted in the meantime.
        if order == "desc":
            assert client.delete(f"/v1/files/{expected[1]}").json()["deleted"]
        rest = client.get("/v1/files", params={"order": order, "after": page["last_id"]}).json()
        assert ([file["id"] for file in rest["data"]], rest["has_more"]) == (expected[2:], False)
    assert client.get("/v1/files", params={"purpose": "batch_output"}).json()["data"] == []
    assert client.get("/v1/files", params={"purpose": "fine-tune"}).json()["data"] == []
    assert len(client.get("/v1/files", params={"purpose": "batch"}).json()["data"]) == 4


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 10_001}, {"order": "up"}])
def test_wrong_queries_are_refused(client: httpx.Client, query: dict[str, Any]) -> None:
    assert error(client.get("/v1/files", params=query), 422)["param"] in query


def test_a_deletion_is_followed_to_its_proof(site: Site, admin: httpx.Client, unit: Unit) -> None:
    body = {"name": "batches", "scopes": ["batch"]}
    key = admin.post(f"/admin/tenants/{unit.slug}/keys", json=body).json()["key"]
    with site.client(key) as client:
        before = site.blobs
        file = create(client)
        (blob,) = site.blobs - before
        assert content(client, file["id"]) == LINE
        assert any((site.settings.home / "files" / "copies").iterdir())
        answer = client.delete(f"/v1/files/{file['id']}")
        deleted = answer.json()
        assert deleted == {"id": file["id"], "object": "file", "deleted": True, "deletion": deleted["deletion"]}
        assert answer.headers["location"] == f"/v1/deletions/{deleted['deletion']}"
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            assert error(client.request(method, f"/v1/files/{file['id']}{path}"), 404)["param"] == "file_id"
        assert client.get("/v1/files").json()["data"] == []
        report = finished(client, deleted["deletion"])
    assert report["subject"] == file["id"]
    assert [(node["reachable"], node["disk_gone_at"] is not None) for node in report["nodes"]] == [(True, True)]
    assert blob not in site.blobs
    shown = admin.get(f"/admin/deletions/{deleted['deletion']}").json()
    assert [one["digest"] for one in shown["blobs"] if one["gone_at"]] == [blob]


def test_a_batch_key_sees_no_deletion_of_an_adapter(site: Site, admin: httpx.Client, unit: Unit) -> None:
    body = {"name": "batches", "scopes": ["batch"]}
    key = admin.post(f"/admin/tenants/{unit.slug}/keys", json=body).json()["key"]
    with site.client(unit.key) as client, site.client(key) as batches:
        deletion = client.delete(f"/v1/files/{create(client)['id']}").json()["deletion"]
        assert batches.get(f"/v1/deletions/{deletion}").status_code == 200
        assert error(batches.get("/v1/deletions"), 403)["code"] == "insufficient_scope"


def test_expires_after_sets_the_lifetime(client: httpx.Client) -> None:
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = create(client, LINE, **fields)
    assert file["expires_at"] - file["created_at"] == 3600


@pytest.mark.parametrize(
    ("anchor", "seconds", "param"),
    [
        ("created_at", "3599", "seconds"),
        ("created_at", "2592001", "seconds"),
        ("created_at", "-1", "seconds"),
        ("created_at", "1e4", "seconds"),
        ("created_at", "٣٦٠٠", "seconds"),
        ("created_at", None, "seconds"),
        ("last_active_at", "3600", "anchor"),
        (None, "3600", "anchor"),
    ],
)
def test_wrong_lifetimes_are_refused(client: httpx.Client, anchor: str | None, seconds: str | None, param: str) -> None:
    given = {"expires_after[anchor]": anchor, "expires_after[seconds]": seconds}
    fields = {name: value for name, value in given.items() if value is not None}
    assert error(client.post("/v1/files", **form(LINE, **fields)), 400)["param"] == f"expires_after.{param}"
    assert client.get("/v1/files").json()["data"] == []


@pytest.mark.parametrize("purpose", ["fine-tune", "batch_output", "assistants", "", "batch "])
def test_other_purposes_are_refused(client: httpx.Client, purpose: str) -> None:
    refused = error(client.post("/v1/files", **form(purpose=purpose)), 400)
    assert (refused["param"], refused["code"]) == ("purpose", "invalid_value")
    assert refused["message"].endswith("but must be 'batch'.")


def test_forms_with_mistakes_are_refused(client: httpx.Client) -> None:
    file = ("in.jsonl", LINE)
    for sent, param in (
        ({"data": {"purpose": "batch"}, "files": {"other": file}}, "other"),
        ({"data": {"purpose": "batch", "extra": "1"}, "files": {"file": file}}, "extra"),
        ({"files": {"file": file}}, "purpose"),
        ({"files": [("purpose", (None, "batch"))]}, "file"),
        ({"files": [("purpose", (None, "batch")), ("file", file), ("file", file)]}, "file"),
        ({"files": [("purpose", (None, "batch")), ("purpose", (None, "batch")), ("file", file)]}, "purpose"),
        ({"files": [("file", file), ("purpose", (None, "other"))]}, "purpose"),
        ({"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"")}}, "file"),
        ({"json": {"purpose": "batch"}}, "content-type"),
        ({"data": {"purpose": "batch"}}, "content-type"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, "content-type"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=abc"}}, "body"),
        ({"content": b"--abc\r\n", "headers": {"content-type": "multipart/form-data; boundary=abc"}}, "body"),
        ({"content": b"", "headers": {"content-type": f"multipart/form-data; boundary={'a' * 999}"}}, "body"),
    ):
        refused = error(client.post("/v1/files", **sent), 400)
        assert (refused["param"], refused["code"]) == (param, "invalid_value"), sent
    long = {"purpose": "b" * 2000}
    assert error(client.post("/v1/files", data=long, files={"file": file}), 413)["param"] == "purpose"
    assert client.get("/v1/files").json()["data"] == []


def test_the_file_may_come_before_its_purpose(client: httpx.Client) -> None:
    fields: list[tuple[str, Any]] = [("file", ("in.jsonl", LINE)), ("purpose", (None, "batch"))]
    file = client.post("/v1/files", files=fields).json()
    assert content(client, file["id"]) == LINE


@pytest.mark.parametrize(
    ("name", "shown", "header"),
    [
        ('a"b\\c.jsonl', "c.jsonl", 'attachment; filename="c.jsonl"'),
        ("../../etc/passwd", "passwd", 'attachment; filename="passwd"'),
        ("größe ü.jsonl", "größe ü.jsonl",
         "attachment; filename=\"gr__e _.jsonl\"; filename*=UTF-8''gr%C3%B6%C3%9Fe%20%C3%BC.jsonl"),
        ("\u202egnp.jsonl", "gnp.jsonl", 'attachment; filename="gnp.jsonl"'),
        ("x" * 300, "x" * 255, f'attachment; filename="{"x" * 255}"'),
        ("'; rm -rf *", "'; rm -rf *", 'attachment; filename="\'; rm -rf *"'),
    ],
)  # fmt: skip
def test_odd_names_are_cleaned_and_quoted(client: httpx.Client, name: str, shown: str, header: str) -> None:
    file = create(client, LINE, name=name)
    assert file["filename"] == shown
    assert client.get(f"/v1/files/{file['id']}/content").headers["content-disposition"] == header


def test_a_form_without_a_file_name_gets_one(client: httpx.Client) -> None:
    body = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    body += b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n' + LINE + b"\r\n--b--\r\n"
    answer = client.post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.json()["filename"] == "file"


def test_a_large_file_is_refused_before_it_is_read(small: Site, limited: httpx.Client) -> None:
    refused = error(limited.post("/v1/files", **form(b"x" * 200_000)), 413)
    assert refused["message"].endswith(" bytes; the limit is 75536 bytes.")
    refused = error(limited.post("/v1/files", **form(b"x" * 10_001)), 413)
    assert refused["message"] == "The file is larger than the limit of 10000 bytes."
    assert create(limited, b"x" * 10_000)["bytes"] == 10_000
    assert list((small.settings.home / "file-spool").glob("*/*")) == []


def test_a_chunked_body_is_refused_at_the_limit(limited: httpx.Client) -> None:
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\n'
        for _ in range(1000):
            sent += 10_000
            yield b"x" * 10_000

    headers = {"content-type": "multipart/form-data; boundary=b"}
    # The server may close the connection before the client has sent everything.
    with contextlib.suppress(httpx.WriteError, httpx.RemoteProtocolError):
        assert error(limited.post("/v1/files", content=body(), headers=headers), 413)["code"] == "too_large"
    assert sent < 10_000_000


def test_a_tenant_has_its_own_limits_of_bytes_and_files(small: Site, limited: httpx.Client) -> None:
    for _ in range(2):
        file = create(limited, b"x" * 10_000)
    blobs = small.blobs
    refused = error(limited.post("/v1/files", **form(b"x" * 5001)), 403)
    assert refused["code"] == "quota_exceeded"
    assert "20000 bytes of at most 25000" in refused["message"]
    assert small.blobs == blobs
    create(limited, b"x" * 5000)
    refused = error(limited.post("/v1/files", **form()), 403)
    assert "3 files and open uploads; the limit is 3" in refused["message"]
    assert limited.delete(f"/v1/files/{file['id']}").status_code == 200
    create(limited)


def test_a_lost_blob_is_named_and_reported(site: Site, unit: Unit, client: httpx.Client) -> None:
    before = site.blobs
    file = create(client)
    (blob,) = site.blobs - before
    (path,) = (site.settings.home / "blobs").rglob(blob)
    path.write_bytes(b"x" * path.stat().st_size)
    refused = error(client.get(f"/v1/files/{file['id']}/content"), 503)
    assert refused["code"] == "file_bytes_missing"
    path.unlink()
    assert error(client.get(f"/v1/files/{file['id']}/content"), 503)["code"] == "file_bytes_missing"
    rows = asyncio.run(audit_rows(site, unit.slug))
    assert [action for action, _ in rows if action.startswith("file.bytes")] == ["file.bytes_damaged"]


@pytest.mark.parametrize("identity", [ABSENT_FILE, "file-x", "x", "file-" + "\u0660" * 32, "%00", "a" * 500])
def test_absent_files_are_not_found(client: httpx.Client, identity: str) -> None:
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert error(client.request(method, f"/v1/files/{identity}{path}"), 404)["code"] == "not_found"
    assert error(client.get("/v1/files", params={"after": identity}), 404)["param"] == "after"


def test_platform_keys_and_other_scopes_are_refused(site: Site, admin: httpx.Client, unit: Unit) -> None:
    key = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "x", "scopes": ["inference"]}).json()["key"]
    with site.client(key) as client:
        assert error(client.post("/v1/files", **form()), 403)["code"] == "insufficient_scope"
    assert "tenant's key with the scope batch" in error(admin.get("/v1/files"), 403)["message"]


def test_a_repeated_request_creates_one_file(client: httpx.Client) -> None:
    headers = {"idempotency-key": "once"}
    first, second = (client.post("/v1/files", **form(), headers=headers) for _ in range(2))
    assert first.json() == second.json()
    assert second.headers["idempotent-replayed"] == "true"
    assert len(client.get("/v1/files").json()["data"]) == 1


def test_the_audit_trail_has_neither_names_nor_contents(site: Site, unit: Unit, client: httpx.Client) -> None:
    file = create(client, b"secret prompt", name="secret-name.jsonl")
    client.delete(f"/v1/files/{file['id']}")
    rows = dict(asyncio.run(audit_rows(site, unit.slug)))
    assert rows["file.create"].startswith(file["id"])
    assert f"'bytes': {len(b'secret prompt')}" in rows["file.create"]
    assert rows["file.delete"].startswith(file["id"])
    assert "secret" not in str(rows)


def test_a_deleted_tenant_leaves_no_files(site: Site, admin: httpx.Client, unit: Unit, client: httpx.Client) -> None:
    before = site.blobs
    create(client)
    (blob,) = site.blobs - before
    assert admin.delete(f"/admin/tenants/{unit.slug}").status_code == 204
    while blob in site.blobs:
        time.sleep(0.05)
