"""``Idempotency-Key`` over HTTP: no action runs twice, and a replay is byte-identical to the first response."""

import asyncio
import itertools
import json
import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.api.idempotency import _Digest
from app.domain.errors import EngineUnavailable
from tests.support.idempotency_rows import idempotency_rows
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts, running_site

#: Headers that belong to one exchange and are not replayed.
OF_THE_EXCHANGE = {"x-request-id", "date", "idempotent-replayed", "connection"}


def _key() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}


def _headers(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in OF_THE_EXCHANGE}


def _check_replay(first: httpx.Response, again: httpx.Response) -> None:
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert (again.status_code, again.content, _headers(again)) == (first.status_code, first.content, _headers(first))
    assert again.headers["x-request-id"] != first.headers["x-request-id"]


def _code(answer: httpx.Response) -> str:
    code: str = answer.json()["error"]["code"]
    return code


@pytest.fixture
def client(site: Site, unit: Unit) -> Iterator[httpx.Client]:
    with site.client(unit.key) as client:
        yield client


def test_a_key_is_made_once_and_shown_again(admin: httpx.Client, unit: Unit) -> None:
    path, header = f"/admin/tenants/{unit.slug}/keys", _key()
    first, again = (admin.post(path, json={"name": "app"}, headers=header) for _ in range(2))
    assert first.status_code == 201
    _check_replay(first, again)
    assert [key["name"] for key in admin.get(path).json()["data"]].count("app") == 1


def test_a_key_is_rotated_once_by_a_request_without_a_body(admin: httpx.Client, unit: Unit) -> None:
    path, header = f"/admin/tenants/{unit.slug}/keys", _key()
    old = admin.post(path, json={"name": "app"}).json()["id"]
    first, again = (admin.post(f"{path}/{old}/rotate", headers=header) for _ in range(2))
    assert first.status_code == 201
    _check_replay(first, again)


def test_an_upload_sent_again_with_another_boundary_is_the_same(client: httpx.Client, files: PeftFiles) -> None:
    path, header = "/v1/adapters/pricing/versions", _key()
    first, again = (client.post(path, files=parts(files), headers=header) for _ in range(2))
    assert first.request.headers["content-type"] != again.request.headers["content-type"]
    assert first.status_code == 201
    _check_replay(first, again)
    assert client.get("/v1/adapters/pricing").json()["versions"] == [1]


def test_another_request_under_the_same_key_is_refused(
    admin: httpx.Client, unit: Unit, files: PeftFiles, other_files: PeftFiles
) -> None:
    path, header = f"/admin/tenants/{unit.slug}/adapters/pricing/versions", _key()
    assert admin.post(path, files=parts(files), headers=header).status_code == 201
    for asked, sent in (
        (path, parts(other_files)),
        (f"{path}?x=1", parts(files)),
        (path.replace("pricing", "supply"), parts(files)),
    ):
        answer = admin.post(asked, files=sent, headers=header)
        assert (answer.status_code, _code(answer)) == (409, "idempotency_key_reused")
        assert answer.headers["x-should-retry"] == "false"
    adapters = admin.get(f"/admin/tenants/{unit.slug}/adapters").json()["data"]
    assert [(adapter["name"], adapter["versions"]) for adapter in adapters] == [("pricing", [1])]
    # The first response is still stored.
    assert admin.post(path, files=parts(files), headers=header).status_code == 201


def test_tenants_that_use_the_same_key_do_not_meet(
    site: Site, admin: httpx.Client, client: httpx.Client, files: PeftFiles
) -> None:
    path, header = "/v1/adapters/pricing/versions", _key()
    with site.client(make_unit(admin).key) as other:
        answers = [asking.post(path, files=parts(files), headers=header) for asking in (client, other)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json()["created_by"] != answers[1].json()["created_by"]


def test_a_request_during_the_first_is_told_to_come_later(
    site: Site, unit: Unit, client: httpx.Client, files: PeftFiles
) -> None:
    path, header = "/v1/adapters/pricing/versions", _key()
    smoked = len(site.engine.smoked)
    site.engine.may_smoke.clear()
    try:
        with ThreadPoolExecutor(1) as thread, site.client(unit.key) as own:
            first = thread.submit(own.post, path, files=parts(files), headers=header)
            while len(site.engine.smoked) == smoked:
                assert not first.done()
            answer = client.post(path, files=parts(files), headers=header)
            site.engine.may_smoke.set()
            done = first.result()
    finally:
        site.engine.may_smoke.set()
    assert (answer.status_code, _code(answer)) == (409, "idempotency_in_progress")
    assert done.status_code == 201
    _check_replay(done, client.post(path, files=parts(files), headers=header))


def test_refusals_leave_nothing_behind_and_are_judged_again(site: Site, admin: httpx.Client, unit: Unit) -> None:
    weak = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "weak", "scopes": ["inference"]}).json()["key"]
    before, slug, header = idempotency_rows(site), f"unit-{uuid.uuid4().hex[:8]}", _key()
    path = f"/admin/tenants/{slug}/keys"
    versions = f"/admin/tenants/{unit.slug}/adapters/a/versions"
    with site.client(weak) as attacker:
        refused: list[tuple[httpx.Client, str, dict[str, Any], int]] = [
            (admin, path, {"json": {"name": "app"}, "headers": header}, 404),
            (admin, "/admin/no-such-route", {"headers": _key()}, 404),
            (admin, f"{path}/x/y/z", {"headers": _key()}, 404),
            (admin, "/admin/engine", {"headers": _key()}, 405),
            (admin, "/admin/tenants", {"json": {"slug": 1}, "headers": _key()}, 422),
            (admin, "/admin/tenants", {"content": b"{", "headers": _key()}, 422),
            (admin, "/admin/tenants", {"json": {"slug": unit.slug}, "headers": _key()}, 409),
            (admin, versions, {"files": {"x": ("x", b"x")}, "headers": _key()}, 422),
            (attacker, "/v1/adapters/x/versions", {"content": b"", "headers": _key()}, 403),
            (attacker, "/v1/adapters/x/versions", {"content": b"x" * 1000, "headers": _key()}, 403),
        ]
        for client, where, what, status in refused:
            assert client.post(where, **what).status_code == status, (where, what)
    assert idempotency_rows(site) == before
    admin.post("/admin/tenants", json={"slug": slug})
    assert admin.post(path, json={"name": "app"}, headers=header).status_code == 201


def test_what_failed_on_the_servers_side_may_be_tried_again(site: Site, client: httpx.Client, files: PeftFiles) -> None:
    path, header, works = "/v1/adapters/pricing/versions", _key(), site.engine.smoke_result
    site.engine.smoke_result = EngineUnavailable("the engine is starting")
    try:
        assert client.post(path, files=parts(files), headers=header).status_code == 503
    finally:
        site.engine.smoke_result = works
    again = client.post(path, files=parts(files), headers=header)
    assert again.is_success
    assert again.json()["state"] == "ready"
    assert "idempotent-replayed" not in again.headers


@pytest.mark.parametrize("value", ["", "x" * 256, "tab\there"])
def test_header_values_that_are_none(admin: httpx.Client, unit: Unit, value: str) -> None:
    path = f"/admin/tenants/{unit.slug}/keys"
    answer = admin.post(path, json={"name": "app"}, headers={"Idempotency-Key": value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")


def test_two_headers_are_refused(admin: httpx.Client, unit: Unit) -> None:
    path = f"/admin/tenants/{unit.slug}/keys"
    answer = admin.post(path, json={"name": "app"}, headers=[("idempotency-key", "a"), ("idempotency-key", "b")])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")


def test_nothing_is_kept_for_strangers(site: Site, unit: Unit, client: httpx.Client) -> None:
    before, header = idempotency_rows(site), _key()
    for key in (None, "tnr_nobody", unit.key[:-1] + ("0" if unit.key[-1] != "0" else "1")):
        with site.client(key) as stranger:
            assert stranger.post("/admin/tenants", json={"slug": "x"}, headers=header).status_code == 401
    assert idempotency_rows(site) == before
    # Routes that ignore the header store nothing either.
    client.get("/v1/adapters", headers=header)
    client.post("/v1/completions", json={"model": "absent", "prompt": "x"}, headers=header)
    assert idempotency_rows(site) == before


def test_a_large_upload_that_was_refused_unread_is_not_kept(site: Site, admin: httpx.Client) -> None:
    before, header = idempotency_rows(site), _key()
    path = f"/admin/tenants/unit-{uuid.uuid4().hex[:8]}/adapters/pricing/versions"
    form = {"adapter_model.safetensors": ("x", b"x" * (site.settings.limits.body_bytes + 2**20))}
    assert admin.post(path, files=form, headers=header).status_code == 404
    assert idempotency_rows(site) == before


def test_a_chunked_body_is_the_same_as_one_of_a_known_length(admin: httpx.Client, unit: Unit) -> None:
    path, header = f"/admin/tenants/{unit.slug}/keys", _key() | {"content-type": "application/json"}
    body = json.dumps({"name": "app"}).encode()
    first = admin.post(path, content=body, headers=header)
    again = admin.post(path, content=(bytes([byte]) for byte in body), headers=header)
    assert "content-length" not in again.request.headers
    _check_replay(first, again)


def test_a_client_that_left_may_come_back(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    path, header = "/v1/adapters/pricing/versions", _key()
    address = urlsplit(site.url)
    with socket.create_connection((str(address.hostname), int(address.port or 0))) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {unit.key}\r\ncontent-length: 1000\r\n"
        form = f"content-type: multipart/form-data; boundary=b\r\nidempotency-key: {header['Idempotency-Key']}\r\n"
        connection.sendall(f"{head}{form}expect: 100-continue\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"--b\r\n")
    with site.client(unit.key) as client:
        answers = (client.post(path, files=parts(files), headers=header) for _ in range(1000))
        answer = next(answer for answer in answers if answer.status_code != 409)
    assert answer.status_code == 201


def test_kept_answers_outlive_the_server_without_api_keys(base: Path, tmp_path: Path) -> None:
    home, header, path = tmp_path / "home", _key(), "/admin/keys"
    with running_site(home, base) as site, site.client(site.admin_key) as admin:
        first = admin.post(path, json={"name": "second"}, headers=header)
        key = site.admin_key
    with running_site(home, base) as site, site.client(key) as admin:
        _check_replay(first, admin.post(path, json={"name": "second"}, headers=header))
        # Includes the write-ahead log while it exists.
        content = b"".join(file.read_bytes() for file in home.glob("tenora.db*"))
    assert b"idempotency" in content
    for secret in (first.json()["key"], header["Idempotency-Key"]):
        assert secret.encode() not in content


boundaries = st.text("abcdefghijklmnopqrstuvwxyz0123456789'()+_,-./:=?", min_size=1, max_size=70).map(str.encode)
contents = st.binary(max_size=200)


@given(first=boundaries, second=boundaries, files=st.lists(contents, max_size=3), cuts=st.lists(st.integers(0, 400)))
def test_the_digest_of_a_form_knows_neither_boundary_nor_chunks(
    first: bytes, second: bytes, files: list[bytes], cuts: list[int]
) -> None:
    assume(not any(b"--" + boundary in content for boundary in (first, second) for content in files))
    whole = _form(first, files)
    assert _digest(first, [whole]) == _digest(second, _cut(_form(second, files), cuts))


@given(boundary=boundaries, files=st.lists(contents, min_size=1, max_size=3), change=st.integers(0, 255))
def test_the_digest_of_a_form_knows_every_byte_of_a_file(boundary: bytes, files: list[bytes], change: int) -> None:
    changed = [*files[:-1], files[-1] + bytes([change])]
    assert _digest(boundary, [_form(boundary, files)]) != _digest(boundary, [_form(boundary, changed)])


def _form(boundary: bytes, files: list[bytes]) -> bytes:
    body = b"".join(b"--" + boundary + b"\r\n\r\n" + content + b"\r\n" for content in files)
    return body + b"--" + boundary + b"--\r\n"


def _cut(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    return [body[start:end] for start, end in itertools.pairwise(places)]


def _digest(boundary: bytes, chunks: list[bytes]) -> str:
    digest = _Digest(b"POST", boundary)
    for chunk in chunks:
        digest._update(chunk)
    return asyncio.run(digest.finish())
