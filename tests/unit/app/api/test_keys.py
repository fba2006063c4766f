"""Keys over HTTP, and the two headers that carry one."""

import httpx
import pytest

from tests.support.limit_names import NAMES
from tests.support.site import Site, Unit

PATHS = pytest.mark.parametrize("owned", [True, False], ids=["tenant", "platform"])


def _keys(unit: Unit, owned: bool) -> str:
    return f"/admin/tenants/{unit.slug}/keys" if owned else "/admin/keys"


def _works(site: Site, key: str, owned: bool) -> bool:
    with site.client(key) as client:
        answer = client.get("/v1/models" if owned else "/admin/tenants")
    assert answer.status_code in {200, 401}
    return answer.status_code == 200


@PATHS
def test_a_keys_life(site: Site, admin: httpx.Client, unit: Unit, owned: bool) -> None:
    path = _keys(unit, owned)
    made = admin.post(path, json={"name": "laptop"})
    assert made.status_code == 201
    key = made.json()
    assert made.headers["location"] == f"{path}/{key['id']}"
    assert key | {"id": None, "key": None, "created_at": None} == {
        "id": None,
        "tenant": unit.slug if owned else None,
        "name": "laptop",
        "owner": None,
        "scopes": ["inference"] if owned else ["admin"],
        "created_at": None,
        "last_used_at": None,
        "expires_at": None,
        "revoked_at": None,
        "limits": dict.fromkeys(NAMES),
        "adapters": None,
        "addresses": None,
        "key": None,
    }
    assert _works(site, key["key"], owned)
    shown = {name: value for name, value in key.items() if name != "key"}
    assert shown in admin.get(path, params={"limit": 200}).json()["data"]
    assert admin.delete(f"{path}/{key['id']}").status_code == 204
    assert not _works(site, key["key"], owned)


@PATHS
def test_rotation_leaves_the_old_key_its_grace(site: Site, admin: httpx.Client, unit: Unit, owned: bool) -> None:
    path = _keys(unit, owned)
    old = admin.post(path, json={"name": "laptop", "expires_in_s": 86400}).json()
    new = admin.post(f"{path}/{old['id']}/rotate")
    assert new.status_code == 201
    assert new.headers["location"] == f"{path}/{new.json()['id']}"
    assert (new.json()["name"], new.json()["scopes"]) == (old["name"], old["scopes"])
    assert _works(site, old["key"], owned)
    assert _works(site, new.json()["key"], owned)
    at_once = admin.post(f"{path}/{new.json()['id']}/rotate", json={"grace_s": 0}).json()
    assert not _works(site, new.json()["key"], owned)
    assert _works(site, at_once["key"], owned)


def test_keys_are_found_with_their_owner_only(admin: httpx.Client, unit: Unit) -> None:
    key_id = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "laptop"}).json()["id"]
    assert admin.delete(f"/admin/keys/{key_id}").status_code == 404
    assert admin.post(f"/admin/keys/{key_id}/rotate", json={}).status_code == 404
    assert admin.get("/admin/tenants/absent/keys").status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "x", "scopes": ["admin"]}, 400),
        ({"name": "x", "scopes": []}, 400),
        ({"name": "x", "scopes": ["everything"]}, 400),
        ({"name": "", "scopes": None}, 400),
        ({"name": "x", "expires_in_s": 0}, 400),
        ({"name": "x", "expires_in_s": "60"}, 422),
        ({"name": "x", "tenant": "another"}, 422),
        ({}, 422),
    ],
)
def test_bodies_are_checked(admin: httpx.Client, unit: Unit, body: dict[str, object], status: int) -> None:
    answer = admin.post(f"/admin/tenants/{unit.slug}/keys", json=body)
    assert answer.status_code == status, answer.text


def test_a_key_travels_in_either_header(site: Site, unit: Unit) -> None:
    with site.client(None) as client:
        for headers in (
            {"authorization": f"Bearer {unit.key}"},
            {"authorization": f"bearer  {unit.key}"},
            {"x-api-key": unit.key},
            {"authorization": "Basic eDp5", "x-api-key": unit.key},
        ):
            assert client.get("/v1/models", headers=headers).status_code == 200


def test_no_key_and_a_bad_one_get_the_same_answer(site: Site, unit: Unit) -> None:
    swapped = unit.key[:-1] + ("0" if unit.key[-1] != "0" else "1")
    with site.client(None) as client:
        answers = [
            client.get("/v1/models", headers=headers)
            for headers in (
                {},
                {"authorization": "Bearer"},
                {"authorization": unit.key},
                {"authorization": f"Bearer {swapped}"},
                {"x-api-key": "tnr_x_y"},
                httpx.Headers([(b"authorization", b"Bearer \xff")]),
            )
        ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1


@PATHS
def test_a_key_shows_itself(site: Site, admin: httpx.Client, unit: Unit, owned: bool) -> None:
    scope = "usage:read" if owned else "metrics"
    restrictions = {"limits": {"requests_per_minute": 7}, "adapters": ["prices"], "addresses": ["127.0.0.0/8"]}
    body = {"name": "laptop", "scopes": [scope], "expires_in_s": 3600} | (restrictions if owned else {})
    made = admin.post(_keys(unit, owned), json=body).json()
    with site.client(made.pop("key")) as client:
        answer = client.get("/v1/key")
    assert answer.status_code == 200
    assert answer.json() == made
    assert (made["tenant"], made["scopes"]) == (unit.slug if owned else None, [scope])


@PATHS
@pytest.mark.parametrize("end", ["revoked", "expired", "wrong", "none", "tenant disabled"])
def test_a_key_that_does_not_work_shows_nothing(
    site: Site, admin: httpx.Client, unit: Unit, owned: bool, end: str
) -> None:
    path = _keys(unit, owned)
    made = admin.post(path, json={"name": "laptop"}).json()
    text = made["key"]
    if end == "revoked":
        admin.delete(f"{path}/{made['id']}")
    elif end == "expired":
        admin.post(f"{path}/{made['id']}/rotate", json={"grace_s": 0})
    elif end == "tenant disabled":
        admin.patch(f"/admin/tenants/{unit.slug}", json={"disabled": True})
        text = text if owned else unit.key
    elif end == "wrong":
        text = text[:-1] + ("a" if text[-1] != "a" else "b")
    with site.client(None if end == "none" else text) as client:
        answers = [client.get(route) for route in ("/v1/key", "/v1/server")]
    assert [answer.status_code for answer in answers] == [401, 401]
    assert [answer.json()["error"]["code"] for answer in answers] == ["invalid_api_key"] * 2
