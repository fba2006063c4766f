"""Attacks on ``/v1/keys``: more rights by a new key, and keys of others."""

from typing import Any

import httpx
import pytest

from tests.support.foreign_names import without
from tests.support.site import Site, Unit, make_unit


@pytest.fixture(scope="module")
def unit(admin: httpx.Client) -> Unit:
    return make_unit(admin)


def issued(admin: httpx.Client, unit: Unit, **body: Any) -> str:
    answer = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "maker", **body})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["key"])


@pytest.mark.parametrize("scope", ["admin", "metrics", "adapters:write", "usage:read", "batch", "inference"])
def test_a_new_key_has_no_scope_that_its_maker_lacks(site: Site, admin: httpx.Client, unit: Unit, scope: str) -> None:
    maker = issued(admin, unit, scopes=["keys:write", "adapters:read"])
    before = len(admin.get(f"/admin/tenants/{unit.slug}/keys").json()["data"])
    with site.client(maker) as attacker:
        assert attacker.post("/v1/keys", json={"name": "x", "scopes": [scope, "keys:write"]}).status_code in {400, 403}
        assert attacker.post("/v1/keys", json={"name": "x"}).status_code == 403
    assert len(admin.get(f"/admin/tenants/{unit.slug}/keys").json()["data"]) == before


@pytest.mark.parametrize(
    "escape",
    [
        {"adapters": None},
        {"adapters": ["prices", "margins"]},
        {"addresses": None},
        {"addresses": ["127.0.0.0/8", "203.0.113.0/24"]},
        {"addresses": ["0.0.0.0/0"]},
        {"addresses": ["::/0"]},
    ],
    ids=str,
)
def test_a_restricted_key_makes_no_wider_one(
    site: Site, admin: httpx.Client, unit: Unit, escape: dict[str, Any]
) -> None:
    maker = issued(
        admin, unit, scopes=["keys:write", "inference"], adapters=["prices"], addresses=["127.0.0.0/8", "::1/128"]
    )
    with site.client(maker) as attacker:
        assert attacker.post("/v1/keys", json={"name": "x", **escape}).status_code == 403
        inherited = attacker.post("/v1/keys", json={"name": "x"}).json()
    assert (inherited["adapters"], inherited["addresses"]) == (["prices"], ["127.0.0.0/8", "::1/128"])


def test_limits_are_not_multiplied_by_new_keys(site: Site, admin: httpx.Client, unit: Unit) -> None:
    limits = {"requests_per_minute": 1}
    maker = issued(admin, unit, scopes=["keys:write", "inference"], limits=limits)
    with site.client(maker) as attacker:
        for body in ({"name": "x"}, {"name": "x", "limits": limits}, {"name": "x", "limits": None}):
            assert attacker.post("/v1/keys", json=body).status_code == 403


def test_a_short_lived_key_makes_no_lasting_one(site: Site, admin: httpx.Client, unit: Unit) -> None:
    maker = issued(admin, unit, scopes=["keys:write", "inference"], expires_in_s=3600)
    with site.client(maker) as attacker:
        assert attacker.post("/v1/keys", json={"name": "x", "expires_in_s": 86400}).status_code == 400
        end = attacker.get("/v1/key").json()["expires_at"]
        assert attacker.post("/v1/keys", json={"name": "x"}).json()["expires_at"] <= end


def test_keys_of_others_are_neither_listed_nor_revoked(site: Site, admin: httpx.Client, unit: Unit) -> None:
    victim = make_unit(admin)
    victim_id, platform_id = victim.key.split("_")[1], site.admin_key.split("_")[1]
    with site.client(unit.key) as attacker:
        listed = attacker.get("/v1/keys", params={"limit": 200, "tenant": victim.slug}).text
        assert not any(name in listed for name in (victim_id, platform_id, victim.slug))
        absent = attacker.delete(f"/v1/keys/{'0' * 16}")
        for key_id in (victim_id, platform_id):
            foreign = attacker.delete(f"/v1/keys/{key_id}")
            assert foreign.status_code == 404
            assert without(key_id, foreign) == without("0" * 16, absent)
    with site.client(victim.key) as client:
        assert client.get("/v1/key").status_code == 200


def test_a_weak_key_revokes_no_stronger_one(site: Site, admin: httpx.Client, unit: Unit) -> None:
    weak = issued(admin, unit, scopes=["keys:write", "inference"], adapters=["prices"])
    for stronger in (issued(admin, unit, scopes=["usage:read"]), issued(admin, unit, scopes=["inference"]), unit.key):
        with site.client(weak) as attacker:
            assert attacker.delete(f"/v1/keys/{stronger.split('_')[1]}").status_code == 403
        with site.client(stronger) as client:
            assert client.get("/v1/key").status_code == 200


def test_a_name_of_the_platform_is_shown_to_no_tenant(site: Site, admin: httpx.Client, unit: Unit) -> None:
    body = {"name": "night shift", "owner": "Grace of operations"}
    operator = admin.post("/admin/keys", json=body).json()["key"]
    with site.client(operator) as operators:
        made = operators.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "gift"}).json()
    with site.client(unit.key) as own:
        texts = [own.get("/v1/keys", params={"limit": 200}).text, own.get(f"/v1/keys/{made['id']}").text]
    assert not any(word in text for text in texts for word in ("night shift", "Grace"))
