"""Tenants over HTTP."""

import uuid

import httpx
import pytest

from tests.support.limit_names import NAMES
from tests.support.site import Site, Unit


def test_a_tenants_life(admin: httpx.Client) -> None:
    slug = f"life-{uuid.uuid4().hex[:8]}"
    made = admin.post("/admin/tenants", json={"slug": slug, "name": "Pricing and quotes"})
    assert made.status_code == 201
    path = made.headers["location"]
    assert path == f"/admin/tenants/{slug}"
    assert made.json() | {"created_at": None} == {
        "slug": slug,
        "name": "Pricing and quotes",
        "disabled": False,
        "created_at": None,
        "quota": dict.fromkeys(("adapters", "versions", "bytes", "rank", "pinned_slots")),
        "limits": dict.fromkeys(NAMES),
        "weight": 1.0,
    }
    used = dict.fromkeys(("adapters", "versions", "bytes", "rank", "pinned_slots"), 0)
    assert admin.get(path).json() == made.json() | {"used": used}
    changed = admin.patch(path, json={"name": "Quotes"})
    assert changed.json() == made.json() | {"name": "Quotes"}
    assert admin.patch(path, json={}).json() == changed.json()
    assert admin.post("/admin/tenants", json={"slug": slug}).status_code == 409
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == admin.delete(path).status_code == 404


def test_a_tenants_weight_is_given_shown_and_changed(admin: httpx.Client) -> None:
    slug = f"heavy-{uuid.uuid4().hex[:8]}"
    path = f"/admin/tenants/{slug}"
    assert admin.post("/admin/tenants", json={"slug": slug, "weight": 4}).json()["weight"] == 4.0
    assert admin.get(path).json()["weight"] == 4.0
    assert admin.patch(path, json={"weight": 0.25}).json()["weight"] == 0.25
    assert admin.patch(path, json={"disabled": False}).json()["weight"] == 0.25


@pytest.mark.parametrize(("weight", "status"), [("0", 400), ("1001", 400), ("NaN", 400), ("true", 422), ('"2"', 422)])
def test_weights_are_checked(admin: httpx.Client, unit: Unit, weight: str, status: int) -> None:
    body, headers = f'{{"weight": {weight}}}', {"content-type": "application/json"}
    answer = admin.patch(f"/admin/tenants/{unit.slug}", content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, "weight")


def test_a_disabled_tenants_keys_do_not_work(site: Site, admin: httpx.Client, unit: Unit) -> None:
    path = f"/admin/tenants/{unit.slug}"
    with site.client(unit.key) as own:
        assert own.get("/v1/adapters").status_code == 200
        assert admin.patch(path, json={"disabled": True}).json()["disabled"] is True
        assert own.get("/v1/adapters").status_code == 401
        admin.patch(path, json={"disabled": False})
        assert own.get("/v1/adapters").status_code == 200


def test_tenants_are_listed_in_pages(admin: httpx.Client, unit: Unit) -> None:
    slugs, cursor = [], None
    while True:
        page = admin.get("/admin/tenants", params={"limit": 1} | ({"cursor": cursor} if cursor else {})).json()
        slugs += [tenant["slug"] for tenant in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert unit.slug in slugs
    assert len(slugs) == len(set(slugs))


@pytest.mark.parametrize("slug", ["", "Upper", "a/b", "-a", "a" * 64, "naïve"])
def test_slugs_are_checked(admin: httpx.Client, slug: str) -> None:
    answer = admin.post("/admin/tenants", json={"slug": slug})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_name")


def test_tenants_are_for_platform_keys(site: Site, unit: Unit) -> None:
    with site.client(unit.key) as own:
        for method, path in (
            ("GET", "/admin/tenants"),
            ("POST", "/admin/tenants"),
            ("GET", f"/admin/tenants/{unit.slug}"),
            ("PATCH", f"/admin/tenants/{unit.slug}"),
            ("DELETE", f"/admin/tenants/{unit.slug}"),
        ):
            assert own.request(method, path, json={"slug": "x"} if method == "POST" else {}).status_code == 403
