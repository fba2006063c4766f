"""Forged, recombined or misplaced keys open nothing, and the answer does not say why."""

import http.client
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.foreign_names import without
from tests.support.guessing import SECRET_AT, checksum, guess
from tests.support.site import Site, Unit, make_unit


@pytest.fixture(scope="module")
def unit(admin: httpx.Client) -> Unit:
    return make_unit(admin)


@pytest.fixture(scope="module")
def other(admin: httpx.Client) -> Unit:
    return make_unit(admin)


def with_checksum(body: str) -> str:
    return body + checksum(body)


#: Function from two valid keys, of two tenants, to an invalid one.
FORGERIES: dict[str, Callable[[str, str], str]] = {
    "a random one": lambda a, b: guess(),
    "another secret": lambda a, b: guess(a[:SECRET_AT]),
    "all of the secret but its end": lambda a, b: with_checksum(a[:-7] + ("0" if a[-7] != "0" else "1")),
    "one's own secret and another's id": lambda a, b: with_checksum(b[:SECRET_AT] + a[SECRET_AT:-6]),
    "another's checksum": lambda a, b: a[:-6] + b[-6:],
    "a checksum of zeros": lambda a, b: a[:-6] + "000000",
    "no checksum": lambda a, b: a[:-6],
    "no secret": lambda a, b: a[:SECRET_AT],
    "the id alone": lambda a, b: a[4 : SECRET_AT - 1],
    "an empty secret with its checksum": lambda a, b: with_checksum(a[:SECRET_AT]),
    "two keys in one": lambda a, b: a + b,
    "two keys with a comma": lambda a, b: f"{a},{b}",
    "upper case": lambda a, b: a.upper(),
    "swapped case": lambda a, b: "tnr_" + a[4:].swapcase(),
    "a longer secret": lambda a, b: with_checksum(a[:-6] + "0"),
    "a percent sign as in LIKE": lambda a, b: with_checksum(a[:SECRET_AT] + "%" * 43),
    "SQL": lambda a, b: f"{a[:SECRET_AT]}' OR '1'='1",
    "blanks inside": lambda a, b: a[:10] + " " + a[10:],
    "a key of 60,000 characters": lambda a, b: a + "0" * 60_000,
    "a JSON list": lambda a, b: f'["{a}"]',
    "quotes around it": lambda a, b: f'"{a}"',
    "percent encoding": lambda a, b: a.replace("_", "%5f"),
    "the hash's own form": lambda a, b: "0" * 64,
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_key_is_like_none(site: Site, unit: Unit, other: Unit, forge: Callable[[str, str], str]) -> None:
    """The answer never says what is wrong, although an attacker can compute the checksum."""
    forged = forge(unit.key, other.key)
    with site.client(None) as anonymous:
        expected = without("", anonymous.get("/v1/models"))
        for headers in ({"authorization": f"Bearer {forged}"}, {"x-api-key": forged}):
            refused = anonymous.get("/v1/models", headers=headers)
            assert refused.status_code == 401
            assert without("", refused) == expected


#: Places where a key does not belong; each leaves a request without a key.
PLACES: dict[str, Callable[[str], tuple[str, dict[str, str]]]] = {
    "in the query": lambda key: (f"?api_key={key}&key={key}&access_token={key}&authorization=Bearer%20{key}", {}),
    "in a cookie": lambda key: ("", {"cookie": f"authorization=Bearer {key}; api_key={key}"}),
    "as basic authentication": lambda key: ("", {"authorization": f"Basic {key}"}),
    "without a scheme": lambda key: ("", {"authorization": key}),
    "as a token": lambda key: ("", {"authorization": f"Token {key}"}),
    "of a proxy": lambda key: ("", {"proxy-authorization": f"Bearer {key}"}),
    "in a forwarded header": lambda key: ("", {"x-forwarded-authorization": f"Bearer {key}", "x-auth-token": key}),
    "behind an empty one": lambda key: ("", {"authorization": "Bearer", "x-api-key": key}),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_key_works_in_its_places_only(
    site: Site, unit: Unit, place: Callable[[str], tuple[str, dict[str, str]]]
) -> None:
    query, headers = place(unit.key)
    with site.client(None) as anonymous:
        assert anonymous.get(f"/v1/models{query}", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("first", "second"),
    [("authorization", "authorization"), ("authorization", "x-api-key"), ("x-api-key", "authorization")],
)
def test_two_keys_speak_for_one_tenant_and_never_for_both(
    site: Site, admin: httpx.Client, unit: Unit, first: str, second: str
) -> None:
    """A tenant's key next to a platform key neither lends it rights nor gains any."""
    inference = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "weak"}).json()["key"]

    def status(path: str) -> int:
        parts = urlsplit(site.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        connection.putrequest("GET", path)
        for name, key in ((first, inference), (second, guess())):
            connection.putheader(name, f"Bearer {key}" if name == "authorization" else key)
        connection.endheaders()
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    works = first == "authorization"
    assert status("/v1/models") == (200 if works else 401)
    assert status("/v1/adapters") == (403 if works else 401)
