"""``q``, ``sort`` and all keys over HTTP, and lists of running canaries."""

import uuid

import httpx
import pytest

from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts


def test_lists_are_searched_and_sorted(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    word = f"w{uuid.uuid4().hex[:8]}"
    for name in ("one", "two"):
        assert admin.post("/admin/tenants", json={"slug": f"{word}-{name}"}).status_code == 201
    found = admin.get("/admin/tenants", params={"q": word.upper(), "sort": "-name"}).json()["data"]
    assert [tenant["slug"] for tenant in found] == [f"{word}-two", f"{word}-one"]
    with site.client(unit.key) as own:
        for name in ("prices", "margins"):
            assert own.post(f"/v1/adapters/{name}/versions", files=parts(files)).status_code == 201
        for params, names in (
            ({"sort": "name"}, ["margins", "prices"]),
            ({"sort": "-created"}, ["margins", "prices"]),
            ({"q": "RIC"}, ["prices"]),
            ({"q": "", "state": "ready"}, ["prices", "margins"]),
        ):
            listed = own.get("/v1/adapters", params=params).json()["data"]
            assert [adapter["name"] for adapter in listed] == names
        assert own.get("/v1/adapters", params={"sort": "size"}).status_code == 422
        assert own.get("/v1/adapters", params={"q": "a" * 101}).status_code == 400


def test_the_platform_lists_all_keys(site: Site, admin: httpx.Client, unit: Unit) -> None:
    key_id, admin_id = unit.key.split("_")[1], site.admin_key.split("_")[1]
    (found,) = admin.get("/admin/keys/all", params={"q": key_id}).json()["data"]
    assert (found["id"], found["tenant"]) == (key_id, unit.slug)
    assert admin.get("/admin/keys/all", params={"q": admin_id}).json()["data"][0]["tenant"] is None
    own = admin.get("/admin/keys/all", params={"tenant": unit.slug, "working": True}).json()["data"]
    assert [key["id"] for key in own] == [key_id]
    assert admin.get("/admin/keys/all", params={"tenant": unit.slug, "working": False}).json()["data"] == []
    assert admin.get("/admin/keys/all", params={"tenant": "absent"}).status_code == 404


def test_lists_of_shares_are_searched(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    recipients = sorted(make_unit(admin).slug for _ in range(2))
    with site.client(unit.key) as own:
        assert own.post("/v1/adapters/prices/versions", files=parts(files)).status_code == 201
        for recipient in recipients:
            assert own.put(f"/v1/adapters/prices/shares/{recipient}").status_code == 201
        for params, found in (
            ({"sort": "-name"}, recipients[::-1]),
            ({"q": recipients[0].upper()}, recipients[:1]),
            ({"q": "%"}, []),
        ):
            listed = own.get("/v1/adapters/prices/shares", params=params).json()["data"]
            assert [share["recipient"] for share in listed] == found
        assert own.get("/v1/adapters/prices/shares", params={"sort": "created"}).status_code == 422
    path = f"/admin/tenants/{recipients[0]}/shared"
    for text, count in ((f"{unit.slug}/PRI", 1), ("labels", 0)):
        assert len(admin.get(path, params={"q": text, "sort": "name"}).json()["data"]) == count


@pytest.mark.parametrize("owned", [True, False], ids=["tenant", "platform"])
def test_running_canaries_are_listed(
    site: Site, admin: httpx.Client, files: PeftFiles, other_files: PeftFiles, owned: bool
) -> None:
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        for content in (files, other_files):
            own.post("/v1/adapters/prices/versions", files=parts(content))
        own.put("/v1/adapters/prices/aliases/default", json={"version": 1})
        assert own.get("/v1/canaries").json() == {"data": [], "next_cursor": None}
        path = "/v1/adapters/prices/aliases/default/canary"
        started = own.put(path, json={"version": 2})
        assert started.status_code in {200, 201}, started.text
        listed = own.get("/v1/canaries") if owned else admin.get("/admin/canaries", params={"tenant": unit.slug})
        (canary,) = listed.json()["data"]
        names = {"tenant": unit.slug, "adapter": "prices", "alias": "default"}
        shown = own.get(path).json()
        assert canary | {"reason": None} == shown | names | {"reason": None}
        name = f"{unit.slug}/prices:default"
        for params, count in (({"q": name.upper(), "sort": "-name"}, 1), ({"q": "labels"}, 0)):
            listed = own.get("/v1/canaries", params=params) if owned else admin.get("/admin/canaries", params=params)
            assert len([one for one in listed.json()["data"] if one["tenant"] == unit.slug]) == count
        assert own.get("/v1/canaries", params={"q": "a" * 101}).status_code == 400
        assert own.delete(path).status_code == 200
        assert own.get("/v1/canaries").json()["data"] == []
