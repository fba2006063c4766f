"""``/v1/keys``: keys that a tenant creates, lists and revokes by itself."""

import httpx
import pytest

from tests.support.site import Site, Unit


def test_a_tenant_manages_its_own_keys(site: Site, admin: httpx.Client, unit: Unit) -> None:
    body = {"name": "till", "owner": "Ada", "scopes": ["inference"], "expires_in_s": 3600, "adapters": ["prices"]}
    with site.client(unit.key) as own:
        answer = own.post("/v1/keys", json=body)
        assert answer.status_code == 201, answer.text
        made = answer.json()
        assert answer.headers["location"] == f"/v1/keys/{made['id']}"
        text = made.pop("key")
        assert (made["tenant"], made["owner"], made["adapters"]) == (unit.slug, "Ada", ["prices"])
        assert made in own.get("/v1/keys").json()["data"]
        with site.client(text) as till:
            assert till.get("/v1/key").json() == made
            assert till.get("/v1/keys").status_code == 403
            assert own.delete(f"/v1/keys/{made['id']}").status_code == 204
            assert till.get("/v1/key").status_code == 401
        assert own.delete("/v1/keys/0000000000000000").status_code == 404
    assert made["id"] in {key["id"] for key in admin.get(f"/admin/tenants/{unit.slug}/keys").json()["data"]}


def test_the_list_has_pages(site: Site, unit: Unit) -> None:
    with site.client(unit.key) as own:
        names = [own.post("/v1/keys", json={"name": f"k{number}"}).json()["name"] for number in range(3)]
        first = own.get("/v1/keys", params={"limit": 2}).json()
        second = own.get("/v1/keys", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert second["next_cursor"] is None
    assert {key["name"] for key in [*first["data"], *second["data"]]} == {"test", *names}


def test_an_owner_is_changed_and_removed(admin: httpx.Client, unit: Unit) -> None:
    keys = f"/admin/tenants/{unit.slug}/keys"
    key = admin.post(keys, json={"name": "till", "owner": "Ada", "adapters": ["prices"]}).json()
    changed = admin.patch(f"{keys}/{key['id']}", json={"owner": "Grace"}).json()
    assert (changed["owner"], changed["adapters"]) == ("Grace", ["prices"])
    assert admin.patch(f"{keys}/{key['id']}", json={"adapters": None}).json()["owner"] == "Grace"
    assert admin.patch(f"{keys}/{key['id']}", json={"owner": None}).json()["owner"] is None
    assert admin.post(f"{keys}/{key['id']}/rotate", json={}).json()["owner"] is None


def test_a_repeated_creation_makes_one_key(site: Site, unit: Unit) -> None:
    with site.client(unit.key) as own:
        first, again = (
            own.post("/v1/keys", json={"name": "once"}, headers={"idempotency-key": "one"}) for _ in range(2)
        )
        assert first.json() == again.json()
        assert [key["name"] for key in own.get("/v1/keys").json()["data"]].count("once") == 1


def test_a_platform_key_has_another_route(admin: httpx.Client) -> None:
    for answer in (admin.get("/v1/keys"), admin.post("/v1/keys", json={"name": "x"})):
        assert answer.status_code == 403
        assert "needs a tenant's key with the scope keys:write" in answer.text


@pytest.mark.parametrize("body", [{}, {"name": "x", "tenant": "other"}, {"name": 7}])
def test_bodies_are_checked(site: Site, unit: Unit, body: dict[str, object]) -> None:
    with site.client(unit.key) as own:
        assert own.post("/v1/keys", json=body).status_code == 422
