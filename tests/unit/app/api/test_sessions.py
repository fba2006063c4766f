"""``/v1/session``: the cookie's attributes, and a browser that signs in and out."""

import httpx
import pytest

from tests.support.console_session import COOKIE, FROM_CONSOLE, browser, sign_in, signed_in
from tests.support.site import Site, Unit

PATHS = pytest.mark.parametrize("owned", [True, False], ids=["tenant", "platform"])


@PATHS
def test_a_browser_signs_in_and_out(site: Site, unit: Unit, owned: bool) -> None:
    key = unit.key if owned else site.admin_key
    with browser(site) as client:
        assert client.get("/v1/session").status_code == 401
        answer = sign_in(client, key)
        shown = answer.json()
        assert answer.headers["cache-control"] == "no-store"
        assert (shown["key"]["id"], shown["idle_s"]) == (key.split("_")[1], 3600)
        assert client.get("/v1/session").json() == shown
        assert client.get("/v1/key").json()["tenant"] == (unit.slug if owned else None)
        assert client.get("/v1/adapters" if owned else "/admin/tenants").status_code == 200
        token = client.cookies[COOKIE]
        ended = client.delete("/v1/session")
        assert ended.status_code == 204
        assert COOKIE not in client.cookies
        client.cookies.set(COOKIE, token)
        assert client.get("/v1/key").status_code == 401


def test_the_cookie_is_out_of_reach(site: Site, unit: Unit) -> None:
    with browser(site) as client:
        local = sign_in(client, unit.key).headers["set-cookie"]
        client.headers["x-forwarded-proto"] = "https"
        secure = sign_in(client, unit.key).headers["set-cookie"]
    (name, *local_parts), (secure_name, *secure_parts) = (
        text.replace("=", "; ", 1).split("; ") for text in (local, secure)
    )
    expected = ["HttpOnly", "Max-Age=43200", "Path=/", "SameSite=strict"]
    assert (name, sorted(local_parts[1:])) == ("tenora", expected)
    assert (secure_name, sorted(secure_parts[1:])) == ("__Host-tenora", [*expected, "Secure"])
    assert unit.key not in local + secure


def test_a_key_in_the_header_goes_before_the_session(site: Site, admin: httpx.Client, unit: Unit) -> None:
    with signed_in(site, site.admin_key) as client:
        own = client.get("/v1/key", headers={"authorization": f"Bearer {unit.key}"})
        assert own.json()["tenant"] == unit.slug
        assert client.get("/v1/key", headers={"x-api-key": "tnr_wrong"}).status_code == 401
        assert client.get("/v1/session", headers={"x-api-key": unit.key}).status_code == 404
        assert client.delete("/v1/session", headers={"x-api-key": unit.key}).status_code == 404
        assert client.get("/v1/key").json()["tenant"] is None


def test_a_second_sign_in_ends_the_first(site: Site, unit: Unit) -> None:
    with signed_in(site, unit.key) as client:
        first = client.cookies[COOKIE]
        sign_in(client, unit.key)
        assert client.get("/v1/key").status_code == 200
        client.cookies.clear()
        client.cookies.set(COOKIE, first)
        assert client.get("/v1/key").status_code == 401


@pytest.mark.parametrize("missing", [*FROM_CONSOLE, "both"])
def test_only_the_consoles_script_signs_in(site: Site, unit: Unit, missing: str) -> None:
    headers = {name: value for name, value in FROM_CONSOLE.items() if missing not in {name, "both"}}
    with site.client(unit.key) as client:
        answer = client.post("/v1/session", headers=headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert "Scripts send an API key instead" in answer.text


def test_a_post_in_a_session_may_be_repeated(site: Site, unit: Unit) -> None:
    with signed_in(site, unit.key) as client:
        headers = {"idempotency-key": "of a session"}
        first, again = (client.post("/v1/keys", json={"name": "once"}, headers=headers) for _ in range(2))
        assert (first.status_code, first.json()) == (201, again.json())
        sign_in(client, unit.key)
        repeated = client.post("/v1/session", headers={"x-api-key": unit.key, "idempotency-key": "x"})
        assert "idempotent-replayed" not in repeated.headers
