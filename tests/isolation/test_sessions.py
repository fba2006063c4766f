"""Attacks on the console's session: forged requests, stolen and chosen tokens, and more rights than its key."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.console_session import COOKIE, FROM_CONSOLE, sign_in, signed_in
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts


@pytest.fixture(scope="module")
def unit(site: Site, admin: httpx.Client, files: PeftFiles) -> Unit:
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        assert own.post("/v1/adapters/mine/versions", files=parts(files)).status_code == 201
    return unit


@pytest.fixture
def victim(site: Site, unit: Unit) -> Iterator[httpx.Client]:
    with signed_in(site, unit.key) as client:
        yield client


FORGED = [
    {},
    {"x-tenora-console": "1"},
    *({"x-tenora-console": "1", "sec-fetch-site": kind} for kind in ("cross-site", "same-site", "none", "")),
    {"sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "same-origin", "x-tenora-console": "0"},
    {"sec-fetch-site": "same-origin, cross-site", "x-tenora-console": "1"},
    {"origin": "https://evil.example", "referer": "https://evil.example/console"},
]


@pytest.mark.parametrize("headers", FORGED, ids=str)
def test_a_request_of_another_page_has_no_session(
    site: Site, victim: httpx.Client, unit: Unit, headers: dict[str, str]
) -> None:
    with site.client(None) as forger:
        forger.cookies, forger.headers = victim.cookies, httpx.Headers(headers)
        for method, path in (
            ("GET", "/v1/key"),
            ("DELETE", "/v1/session"),
            ("DELETE", "/v1/adapters/mine"),
            ("POST", "/v1/keys"),
        ):
            assert forger.request(method, path, json={"name": "x"}).status_code == 401, path
    assert victim.get("/v1/adapters/mine").status_code == 200


def test_a_form_of_another_page_signs_nobody_in(site: Site, unit: Unit) -> None:
    """A page that signs its visitor in as its owner would see what the visitor then uploads."""
    with site.client(unit.key) as attacker:
        for headers in FORGED:
            answer = attacker.post("/v1/session", headers=headers)
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_a_session_does_not_extend_itself(site: Site, victim: httpx.Client) -> None:
    end = victim.get("/v1/session").json()["expires_at"]
    for _ in range(2):
        assert victim.post("/v1/session").status_code == 401
    assert victim.get("/v1/session").json()["expires_at"] == end


def test_a_token_counts_in_no_other_place(site: Site, victim: httpx.Client) -> None:
    token = victim.cookies[COOKIE]
    with site.client(None) as attacker:
        attacker.headers.update(FROM_CONSOLE)
        for headers in (
            {"authorization": f"Bearer {token}"},
            {"x-api-key": token},
            {"cookie": f"__Host-tenora={token}"},
            {"cookie": f"session={token}"},
            {"x-session": token},
        ):
            assert attacker.get("/v1/key", headers=headers).status_code == 401
        assert attacker.get("/v1/key", params={"token": token, COOKIE: token}).status_code == 401
        # Another host of the site, or a network without TLS, can set the plain name, but not the one for HTTPS.
        secure = {"cookie": f"{COOKIE}={token}", "x-forwarded-proto": "https"}
        assert attacker.get("/v1/key", headers=secure).status_code == 401


def test_a_token_in_use_is_no_key(site: Site, victim: httpx.Client) -> None:
    token = victim.cookies[COOKIE]
    with site.client(None) as thief:
        for headers in ({"authorization": f"Bearer {token}"}, {"x-api-key": token}):
            # The server keeps the caller of a request in memory for a moment.
            assert victim.get("/v1/key").status_code == 200
            assert thief.get("/v1/key", headers=headers).status_code == 401
            assert victim.get("/v1/key").status_code == 200
            assert thief.post("/v1/session", headers=FROM_CONSOLE | headers).status_code == 401


def test_a_chosen_token_is_never_adopted(site: Site, unit: Unit) -> None:
    chosen = "tns_" + "A" * 43
    with site.client(None) as client:
        client.headers.update(FROM_CONSOLE)
        client.headers["cookie"] = f"{COOKIE}={chosen}"
        answer = sign_in(client, unit.key)
        assert chosen not in answer.headers["set-cookie"]
        assert client.get("/v1/key").status_code == 401


def test_guessed_tokens_get_one_answer(site: Site, victim: httpx.Client) -> None:
    token = victim.cookies[COOKIE]
    guesses = ["", "x", "tns_" + "0" * 43, token[:-1], token[:-1] + ("A" if token[-1] != "A" else "B"), token.lower()]
    with site.client(None) as attacker:
        attacker.headers.update(FROM_CONSOLE)
        answers = [attacker.get("/v1/key", headers={"cookie": f"{COOKIE}={guess}"}) for guess in guesses]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1


def test_a_session_has_no_more_rights_than_its_key(site: Site, admin: httpx.Client, unit: Unit) -> None:
    keys = f"/admin/tenants/{unit.slug}/keys"
    weak = admin.post(keys, json={"name": "weak", "scopes": ["usage:read"]}).json()["key"]
    with signed_in(site, weak) as client:
        assert client.get("/v1/usage").status_code == 200
        for path in ("/v1/adapters", "/v1/keys", "/admin/tenants", f"{keys}", "/admin/usage", "/metrics"):
            assert client.get(path).status_code == 403, path
    with signed_in(site, unit.key) as client:
        other = make_unit(admin)
        assert client.get(f"/admin/tenants/{other.slug}/adapters").status_code == 404


def test_a_session_from_another_network_is_refused(site: Site, admin: httpx.Client, unit: Unit) -> None:
    body = {"name": "office", "scopes": ["adapters:read"], "addresses": ["127.0.0.0/8"]}
    office = admin.post(f"/admin/tenants/{unit.slug}/keys", json=body).json()["key"]
    elsewhere = {"x-forwarded-for": "203.0.113.9"}
    with signed_in(site, office) as client:
        assert client.get("/v1/adapters").status_code == 200
        assert client.get("/v1/adapters", headers=elsewhere).status_code == 403
        away = client.post("/v1/session", headers=elsewhere | {"authorization": f"Bearer {office}"})
        assert (away.status_code, "set-cookie" in away.headers) == (403, False)


def test_a_stolen_session_ends_with_its_key(site: Site, admin: httpx.Client) -> None:
    owner = make_unit(admin)
    with signed_in(site, owner.key) as thief:
        assert thief.get("/v1/key").status_code == 200
        key_id = owner.key.split("_")[1]
        assert admin.delete(f"/admin/tenants/{owner.slug}/keys/{key_id}").status_code == 204
        assert thief.get("/v1/key").status_code == 401
        assert thief.post("/v1/keys", json={"name": "stay"}).status_code == 401


def test_no_answer_lets_another_origin_read_a_session(site: Site, victim: httpx.Client) -> None:
    for method in ("GET", "OPTIONS"):
        headers = {"origin": "https://evil.example", "access-control-request-method": "GET"}
        answer = victim.request(method, "/v1/session", headers=headers)
        assert not any(name.startswith("access-control-") for name in answer.headers)
