"""Request bodies as clients send them (compressed, large, broken), up to the hand-over to the engine."""

import gzip
import json
import re
import socket
import threading
import zlib

import httpx
import pytest

from tests.support.site import Site, Unit

ASKED = json.dumps({"prompt": "Hello", "max_tokens": 1}).encode()
JSON = {"content-type": "application/json"}
ROUTES = {
    "/v1/completions": ASKED,
    "/v1/chat/completions": b'{"messages": []}',
    "/v1/responses": b'{"input": "Hello"}',
    "/v1/messages": b'{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}',
    "/generate": b'{"inputs": "Hello"}',
}
COMPRESS = {"gzip": gzip.compress, "x-gzip": gzip.compress, "GZIP, identity": gzip.compress, "deflate": zlib.compress}


def post(site: Site, key: str | None, body: bytes, path: str = "/v1/completions", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with site.client(key) as client:
        return client.post(path, content=body, headers=JSON | named)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("path", ROUTES)
def test_a_compressed_body_is_the_body(site: Site, unit: Unit, path: str, encoding: str) -> None:
    plain = post(site, unit.key, ROUTES[path], path)
    packed = post(site, unit.key, COMPRESS[encoding](ROUTES[path]), path, content_encoding=encoding)
    # No engine runs here. Equal responses show that both requests got equally far.
    assert (packed.status_code, packed.json()) == (plain.status_code, plain.json())
    assert plain.status_code in {400, 503}


def test_a_compressed_body_of_administration(site: Site, admin: httpx.Client) -> None:
    body = gzip.compress(b'\xef\xbb\xbf{"slug": "packed"}')
    made = admin.post("/admin/tenants", content=iter([body[:9], body[9:]]), headers=JSON | {"content-encoding": "gzip"})
    assert (made.status_code, made.json()["slug"]) == (201, "packed")


def test_a_byte_order_mark_is_passed_over(site: Site, unit: Unit) -> None:
    assert code(post(site, unit.key, b"\xef\xbb\xbf" + ASKED)) == (503, "engine_unavailable")


def test_what_grows_beyond_the_cap_is_too_large(site: Site, unit: Unit) -> None:
    cap = site.settings.limits.body_bytes
    for packed in (gzip.compress(b" " * (cap + 1)), gzip.compress(b" " * (100 * cap))):
        assert code(post(site, unit.key, packed, content_encoding="gzip")) == (413, "too_large")
    fits = gzip.compress(ASKED + b" " * (cap - len(ASKED)))
    assert code(post(site, unit.key, fits, content_encoding="gzip")) == (503, "engine_unavailable")


BROKEN = {
    "plain": ASKED,
    "cut off": gzip.compress(ASKED)[:-1],
    "a head only": gzip.compress(ASKED)[:10],
    "more behind it": gzip.compress(ASKED) + b"x",
    "two of them": gzip.compress(ASKED) * 2,
    "another sum": gzip.compress(ASKED)[:-8] + bytes(8),
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_bytes_that_are_not_of_their_encoding(site: Site, unit: Unit, body: bytes) -> None:
    answer = post(site, unit.key, body, content_encoding="gzip")
    assert code(answer) == (400, "invalid_value")
    assert answer.json()["error"]["param"] == "content-encoding"


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "\xff"])
def test_other_encodings_are_named(site: Site, unit: Unit, encoding: str) -> None:
    with site.client(unit.key) as client:
        headers = [(b"content-encoding", one.encode("latin-1")) for one in encoding.split(", ")]
        answer = client.post(
            "/v1/completions", content=ASKED, headers=[(b"content-type", b"application/json"), *headers]
        )
    assert code(answer) == (415, "unsupported_encoding")
    assert "gzip, x-gzip, deflate, identity" in answer.json()["error"]["message"]


def test_files_are_not_compressed(site: Site, unit: Unit) -> None:
    upload = post(site, unit.key, gzip.compress(b""), "/v1/adapters/a/versions", content_encoding="gzip")
    assert code(upload) == (415, "unsupported_encoding")


def test_a_request_without_a_body_may_name_an_encoding(site: Site, unit: Unit) -> None:
    with site.client(unit.key) as client:
        assert client.get("/v1/models", headers={"content-encoding": "gzip"}).status_code == 200


@pytest.mark.parametrize("length", [b"0" * 4400, b"0" * 21, b"9" * 19, b"9" * 25])
def test_a_length_that_no_body_has(site: Site, length: bytes) -> None:
    port = int(site.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %s\r\n\r\n" % length
        client.sendall(head)
        status = client.recv(2**16).partition(b"\r\n")[0]
    assert re.fullmatch(rb"HTTP/1.1 4(00|13) .*", status), status


LARGE = b'{"prompt": [' + b"[]," * 40_000 + b"[]]}"


def test_nothing_is_parsed_for_who_has_no_key(site: Site) -> None:
    for path in ("/admin/tenants", "/v1/adapters/a/merges", "/v1/completions"):
        for body in (LARGE, b"nonsense"):
            assert code(post(site, None, body, path)) == (401, "invalid_api_key")


@pytest.mark.parametrize("path", ["/admin/tenants", "/admin/keys"])
def test_a_large_body_of_administration_is_bounded(admin: httpx.Client, path: str) -> None:
    too_much = admin.post(path, content=b'{"slug": [' + b"[]," * 70_000 + b"[]]}", headers=JSON)
    assert (too_much.status_code, too_much.json()["error"]["param"]) == (422, "body")
    assert "arrays and objects" in too_much.json()["error"]["message"]
    broken = admin.post(path, content=b'{"slug": "' + b"x" * 70_000, headers=JSON)
    assert broken.status_code == 422
    assert broken.json()["error"]["reasons"][0]["code"] == "json_invalid"


def limit(admin: httpx.Client, unit: Unit, **limits: int) -> None:
    assert admin.patch(f"/admin/tenants/{unit.slug}", json={"limits": limits}).is_success


REFUSED = {
    "no JSON": b"nonsense",
    "a field that there is not": b'{"prompt": "x", "absent": 1}',
    "a model that there is not": b'{"prompt": "x", "model": "absent"}',
    "a name that is none": b'{"prompt": "x", "model": "?"}',
    "a large body": LARGE,
    "too much": b'{"prompt": [' + b"[]," * 70_000 + b"[]]}",
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_a_request_that_is_refused_is_one_all_the_same(
    site: Site, admin: httpx.Client, unit: Unit, body: bytes
) -> None:
    limit(admin, unit, requests_per_minute=1)
    first = post(site, unit.key, body)
    assert first.status_code in {400, 404, 422}
    again = post(site, unit.key, body)
    assert code(again) == (429, "rate_limit_exceeded")
    assert again.headers["x-ratelimit-remaining-requests"] == "0"
    with site.client(unit.key) as client:
        rows = client.get("/v1/limits").json()
    assert "requests_per_minute" in json.dumps(rows)


@pytest.mark.parametrize("body", [b"nonsense", LARGE], ids=["small", "large"])
def test_of_many_at_once_one_is_parsed(site: Site, admin: httpx.Client, unit: Unit, body: bytes) -> None:
    limit(admin, unit, requests_per_minute=1)
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(post(site, unit.key, body).status_code)) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [400] + [429] * 5


def test_a_neighbours_refusals_count_for_nobody_else(site: Site, admin: httpx.Client, unit: Unit) -> None:
    other = admin.post("/admin/tenants", json={"slug": f"{unit.slug}-x"}).json()["slug"]
    key = admin.post(f"/admin/tenants/{other}/keys", json={"name": "app", "scopes": ["inference"]}).json()["key"]
    for slug in (unit.slug, other):
        assert admin.patch(f"/admin/tenants/{slug}", json={"limits": {"requests_per_minute": 1}}).is_success
    assert [post(site, key, b"nonsense").status_code for _ in range(2)] == [400, 429]
    assert post(site, unit.key, ASKED).status_code == 503
