"""Path and header attacks: with any request line, a tenant's key reaches its own objects only."""

import base64
import http.client
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

#: Marker in the owner's card, and nowhere else on the server.
MARK = secrets.token_hex(16)


@dataclass(frozen=True)
class Prey:
    """Tenant with one adapter of one version, and everything that an attacker may know of it."""

    slug: str
    key: str
    digest: str
    upload: str
    deletion: str


@pytest.fixture(scope="module")
def prey(site: Site, admin: httpx.Client, files: PeftFiles) -> Prey:
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        for adapter in ("secret", "gone"):
            made = own.post(f"/v1/adapters/{adapter}/versions", files=parts(files)).json()
        assert own.patch("/v1/adapters/secret/versions/1", json={"card": MARK}).status_code == 200
        announced = {name: {"size": len(part[1]), "sha256": "0" * 64} for name, part in parts(files).items()}
        upload = own.post("/v1/adapters/secret/uploads", json={"files": announced}).json()["id"]
        assert own.delete("/v1/adapters/gone", params={"force": True}).status_code == 202
        deletion = own.get("/v1/deletions").json()["data"][0]["id"]
    return Prey(unit.slug, unit.key, made["digest"], upload, deletion)


@pytest.fixture(scope="module")
def attacker(site: Site, admin: httpx.Client, files: PeftFiles) -> Unit:
    """Tenant with its own adapter ``mine``."""
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        assert own.post("/v1/adapters/mine/versions", files=parts(files)).status_code == 201
    return unit


def raw(site: Site, target: str, key: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Send a raw request line, which httpx would normalise."""
    parts_ = urlsplit(site.url)
    connection = http.client.HTTPConnection(parts_.hostname or "", parts_.port, timeout=30)
    try:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in {"authorization": f"Bearer {key}", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


#: Targets with ``{o}`` for the owner's slug, ``{me}`` for the attacker's, ``{d}`` for the digest's hex digits.
TARGETS = {
    "dot segments": "/v1/adapters/../../admin/tenants/{o}/adapters/secret/versions/1",
    "dot segments behind one's own": "/admin/tenants/{me}/../{o}/adapters/secret/versions/1",
    "encoded dots": "/admin/tenants/{me}/%2e%2e/{o}/adapters/secret/versions/1",
    "encoded slashes": "/v1/adapters/..%2f..%2fadmin%2ftenants%2f{o}%2fadapters%2fsecret",
    "encoded slash in the slug": "/admin/tenants/{me}%2f..%2f{o}/adapters/secret/versions/1",
    "encoded twice": "/admin/tenants/{me}%252f%252e%252e%252f{o}/adapters/secret/versions/1",
    "backslashes": "/admin/tenants/{me}\\..\\{o}/adapters/secret/versions/1",
    "path parameter": "/admin/tenants/{me};/../{o}/adapters/secret/versions/1",
    "path parameter with a name": "/admin/tenants/{o};tenant={me}/adapters/secret/versions/1",
    "double slashes": "//admin//tenants//{o}//adapters//secret//versions//1",
    "trailing slash": "/admin/tenants/{o}/adapters/secret/versions/1/",
    "overlong UTF-8": "/admin/tenants/{me}/%c0%ae%c0%ae/{o}/adapters/secret/versions/1",
    "absolute target": "http://localhost/admin/tenants/{o}/adapters/secret/versions/1",
    "absolute target with a user": "http://{o}@localhost/v1/adapters/secret/versions/1",
    "NUL behind the slug": "/admin/tenants/{o}%00/adapters/secret/versions/1",
    "NUL before one's own": "/admin/tenants/{o}%00{me}/adapters/secret/versions/1",
    "blank behind the slug": "/admin/tenants/{o}%20/adapters/secret/versions/1",
    "tab behind the slug": "/admin/tenants/{o}%09/adapters/secret/versions/1",
    "upper case": "/admin/tenants/{O}/adapters/secret/versions/1",
    "upper case route": "/ADMIN/tenants/{o}/adapters/secret/versions/1",
    "full-width letter": "/admin/tenants/%EF%BD%95{tail}/adapters/secret/versions/1",
    "Cyrillic letter": "/v1/shared/{o}/s%D0%B5cret/versions/1",
    "zero-width joiner": "/v1/shared/{o}/secret%E2%80%8D/versions/1",
    "combining mark": "/v1/shared/{o}/se%CC%81cret/versions/1",
    "long s": "/v1/shared/{o}/%C5%BFecret/versions/1",
    "wildcard": "/admin/tenants/*/adapters/secret/versions/1",
    "percent as in LIKE": "/admin/tenants/%25/adapters/secret/versions/1",
    "quote": "/admin/tenants/{me}'%20OR%20'1'='1/adapters/secret/versions/1",
    "owner and adapter as one name": "/v1/adapters/{o}%2fsecret/versions/1",
    "owner and adapter as a model": "/v1/models/{o}/secret",
    "digest as a model": "/v1/models/sha256:{d}",
    "digest as an adapter": "/v1/adapters/sha256:{d}/versions/1",
    "digest as a version": "/v1/adapters/mine/versions/{d}",
    "engine's name as a model": "/v1/models/1@{d16}",
    "row id as a version": "/v1/adapters/mine/versions/2",
    "negative version": "/v1/adapters/mine/versions/-1",
    "path as a file": "/v1/adapters/mine/versions/1/files/..%2f..%2f{d}",
    "root path as a file": "/v1/adapters/mine/versions/1/files/%2fetc%2fpasswd",
    "digest as a file": "/v1/adapters/mine/versions/1/files/{d}",
    "upload under one's own adapter": "/v1/adapters/mine/uploads/{upload}",
    "upload under the same name": "/v1/adapters/secret/uploads/{upload}",
    "deletion by its id": "/v1/deletions/{deletion}",
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_no_spelling_of_a_path_leads_to_anothers_things(site: Site, prey: Prey, attacker: Unit, target: str) -> None:
    digest = prey.digest.removeprefix("sha256:")
    filled = target.format(
        o=prey.slug,
        O=prey.slug.upper(),
        tail=prey.slug[1:],
        me=attacker.slug,
        d=digest,
        d16=digest[:16],
        upload=prey.upload,
        deletion=prey.deletion,
    )
    status, text = raw(site, filled, attacker.key)
    assert status in {400, 404, 422}, text
    assert MARK not in text
    if digest not in filled:
        assert digest not in text


@pytest.mark.parametrize("path", ["adapters/secret/uploads/{upload}", "deletions/{deletion}", "adapters/secret"])
def test_what_the_attacks_aim_at_is_there(site: Site, prey: Prey, path: str) -> None:
    status, _ = raw(site, "/v1/" + path.format(upload=prey.upload, deletion=prey.deletion), prey.key)
    assert status == 200


@pytest.mark.parametrize("name", ["tenant", "owner", "tenant_id", "slug", "tenant[]"])
@pytest.mark.parametrize("path", ["adapters", "engine", "usage", "quota", "deletions", "shared", "models"])
def test_no_query_makes_a_list_anothers(site: Site, prey: Prey, attacker: Unit, path: str, name: str) -> None:
    plain = raw(site, f"/v1/{path}", attacker.key)
    status, text = raw(site, f"/v1/{path}?{name}={prey.slug}", attacker.key)
    assert (status, without_times(text)) == (plain[0], without_times(plain[1]))
    assert status == 200


def without_times(text: str) -> str:
    """Remove the end time of a report, which is the current time."""
    return text.partition('"end"')[0]


HEADERS = {
    "tenant's name": {"x-tenant": "{o}", "x-tenora-tenant": "{o}", "x-tenant-id": "1", "x-scope-orgid": "{o}"},
    "another address": {"x-original-url": "{path}", "x-rewrite-url": "{path}", "x-forwarded-uri": "{path}"},
    "another host": {"x-forwarded-host": "{o}", "x-forwarded-prefix": "/admin/tenants/{o}"},
    "another user": {"x-forwarded-user": "{o}", "x-remote-user": "admin", "remote-user": "admin"},
    "another method": {"x-http-method-override": "DELETE", "x-method-override": "DELETE", "x-http-method": "DELETE"},
    "a session": {"cookie": "session={o}; tenant={o}; api_key={key}"},
}


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_no_header_makes_a_request_anothers(site: Site, prey: Prey, attacker: Unit, headers: dict[str, str]) -> None:
    path = f"/admin/tenants/{prey.slug}/adapters/secret/versions/1"
    filled = {name: value.format(o=prey.slug, path=path, key=prey.key) for name, value in headers.items()}
    for target in ("/v1/adapters", "/v1/adapters/mine/versions/1"):
        assert raw(site, target, attacker.key, **filled) == raw(site, target, attacker.key)
    status, text = raw(site, path, attacker.key, **filled)
    assert status == 404
    assert MARK not in text


@pytest.mark.parametrize("position", ["0", "1", str(2**31), "-1", "unit-", "' OR 1=1 --"])
@pytest.mark.parametrize("path", ["adapters", "adapters/mine/versions", "shared", "deletions"])
def test_a_forged_cursor_opens_no_other_list(site: Site, prey: Prey, attacker: Unit, path: str, position: str) -> None:
    cursor = base64.urlsafe_b64encode(position.encode()).decode()
    status, text = raw(site, f"/v1/{path}?cursor={cursor}", attacker.key)
    assert status in {200, 400}
    for told in (MARK, prey.slug, prey.deletion, "secret"):
        assert told not in text
