"""Enumeration of another tenant's adapters: each answer equals the answer for a name that never existed."""

import contextlib
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.foreign_names import calls, without
from tests.support.server import Server

OWNER, ATTACKER = "pricing", "supply-chain"


@pytest.fixture(scope="module")
def attacker(server: Server, keys: dict[str, str]) -> Iterator[httpx.Client]:
    with server.client(keys[ATTACKER]) as client:
        yield client


@pytest.fixture(scope="module")
def version(server: Server, keys: dict[str, str]) -> dict[str, Any]:
    """The owner's version, as the owner sees it."""
    with server.client(keys[OWNER]) as owner:
        found: dict[str, Any] = owner.get("/v1/adapters/pricing/versions/1").json()
    return found


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("form", ["{}", "{}@1", "{}:default"])
def test_by_name_alias_or_version_on_every_route(
    server: Server, keys: dict[str, str], attacker: httpx.Client, form: str, warm: bool
) -> None:
    foreign, absent = form.format("pricing"), form.format("nothing")
    if warm:
        with server.client(keys[OWNER]) as owner:
            for path, body in calls(foreign):
                assert owner.post(path, json=body).status_code == 200
    for (path, body), (_, twin) in zip(calls(foreign), calls(absent), strict=True):
        refused = attacker.post(path, json=body)
        assert refused.status_code == 404
        assert without(foreign, refused) == without(absent, attacker.post(path, json=twin))


def test_by_digest_engine_name_tenant_path_or_look_alike(attacker: httpx.Client, version: dict[str, Any]) -> None:
    digest = version["digest"].removeprefix("sha256:")
    names = [
        digest,
        f"sha256:{digest}",
        f"1@{digest[:16]}",
        f"{OWNER}/pricing",
        f"../{OWNER}/pricing",
        "PRICING",
        "pricing ",
        "pricing\u200b",
        "pr\u0456cing",
        "pricing%40",
        "pricing@01",
        "pricing@1 ",
        "pricing\x00",
    ]
    for name in names:
        for path, body in calls(name):
            assert attacker.post(path, json=body).status_code == 404, (name, path)


def test_models_list_and_look_up(attacker: httpx.Client) -> None:
    listed = {model["id"] for model in attacker.get("/v1/models").json()["data"]}
    assert {"demo", ATTACKER} <= listed
    assert "pricing" not in listed
    for name in ("pricing", "pricing@1", "pricing:default"):
        absent = name.replace("pricing", "nothing")
        refused = attacker.get(f"/v1/models/{name}")
        assert without(name, refused) == without(absent, attacker.get(f"/v1/models/{absent}"))


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("path", ["", "/pricing", "/pricing/versions", "/pricing/versions/1"])
def test_through_the_admin_routes_of_the_owner(attacker: httpx.Client, method: str, path: str) -> None:
    refused = attacker.request(method, f"/admin/tenants/{OWNER}/adapters{path}")
    absent = attacker.request(method, f"/admin/tenants/nosuch/adapters{path}")
    assert without(OWNER, refused) == without("nosuch", absent)
    no_such_method = method == "DELETE" and path in {"", "/pricing/versions"}
    assert refused.status_code == (405 if no_such_method else 404)


def test_publishing_into_the_owners_line(server: Server, attacker: httpx.Client) -> None:
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}
    refused = attacker.post(f"/admin/tenants/{OWNER}/adapters/pricing/versions", files=files)
    absent = attacker.post("/admin/tenants/nosuch/adapters/pricing/versions", files=files)
    assert refused.status_code == 404
    assert without(OWNER, refused) == without("nosuch", absent)
    with server.client(server.admin_key) as admin:
        assert len(admin.get(f"/admin/tenants/{OWNER}/adapters/pricing/versions").json()["data"]) == 1


def test_a_revoked_key_is_a_key_that_never_existed(server: Server) -> None:
    key = server.tenant("leaver")
    with server.client(server.admin_key) as admin, server.client(key) as leaver:
        assert leaver.get("/v1/models").status_code == 200
        key_id = admin.get("/admin/tenants/leaver/keys").json()["data"][0]["id"]
        assert admin.delete(f"/admin/tenants/leaver/keys/{key_id}").status_code == 204
        with server.client(key[:-1] + ("0" if key[-1] != "0" else "1")) as stranger:
            for path, body in calls("pricing"):
                refused = leaver.post(path, json=body)
                assert refused.status_code == 401
                assert without("", refused) == without("", stranger.post(path, json=body))


def connected(server: Server) -> HTTPConnection:
    """Connection that sends head and body concurrently."""
    address = urlsplit(server.url)
    return HTTPConnection(str(address.hostname), address.port, timeout=60)


@pytest.mark.parametrize("framing", [("content-length", "4"), ("transfer-encoding", "chunked")])
def test_a_refusal_keeps_the_connection_wherever_the_body_is(server: Server, framing: tuple[str, str]) -> None:
    """The connection state must not reveal the slower look-up of a known key, whose body has arrived by then."""
    body = b"4\r\nnull\r\n0\r\n\r\n" if "chunked" in framing else b"null"
    with contextlib.closing(connected(server)) as connection:
        for _ in range(20):
            connection.putrequest("POST", "/v1/completions")
            connection.putheader("authorization", "Bearer tnr_x")
            connection.putheader(*framing)
            connection.endheaders()
            connection.send(body)
            answer = connection.getresponse()
            assert answer.status == 401
            assert not answer.will_close
            answer.read()


@pytest.mark.parametrize("announced", [3, 1_000_000])
def test_it_does_not_wait_for_ever_nor_for_a_large_body(server: Server, announced: int) -> None:
    with contextlib.closing(connected(server)) as connection:
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("content-length", str(announced))
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 401
        assert answer.will_close


def test_tenant_keys_open_nothing_of_the_platforms(attacker: httpx.Client) -> None:
    for path in ("/admin/tenants", f"/admin/tenants/{ATTACKER}", f"/admin/tenants/{ATTACKER}/keys", "/admin/keys"):
        assert attacker.get(path).status_code == 403
    for path in ("/admin/keys", f"/admin/tenants/{ATTACKER}/keys"):
        body = {"name": "mine", "scopes": ["admin"]}
        assert attacker.post(path, json=body).status_code == 403


def test_metrics_and_health_name_no_tenant_and_no_adapter(server: Server, keys: dict[str, str]) -> None:
    with server.client() as anyone:
        for path in ("/metrics", "/health/ready", "/health/live", "/openapi.json"):
            shown = anyone.get(path).text
            assert "supply-chain" not in shown
            assert "pricing@1" not in shown.replace("`pricing@1`", "")
