"""``/v1/refusals``: reasons of refused uploads, however they were sent."""

import httpx

from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts


def test_every_refused_upload_is_listed(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    with site.client(unit.key) as own:
        path = "/v1/adapters/prices/versions"
        wrong = PeftFiles(files.config.replace(b'"r": 4', b'"r": 4096'), files.weights)
        told = [
            own.post(path, files={"adapter_config.json": ("adapter_config.json", files.config)}),
            own.post(path, files=parts(wrong)),
        ]
        assert [answer.status_code for answer in told] == [422, 422]
        page = own.get("/v1/refusals").json()
        newest, oldest = page["data"]
        for answer, refusal in zip(reversed(told), (newest, oldest), strict=True):
            assert refusal["reasons"] == answer.json()["error"]["reasons"]
            assert refusal["reason_count"] == len(refusal["reasons"])
            names = (refusal["adapter"], refusal["key"], refusal["key_name"])
            assert names == ("prices", unit.key.split("_")[1], "test")
        assert newest["digest"].startswith("sha256:")
        assert oldest["digest"] is None
        assert own.get("/v1/refusals", params={"adapter": "other"}).json()["data"] == []
        assert own.get("/v1/refusals", params={"adapter": "A/B"}).status_code == 422
        assert own.post(path, files=parts(files)).status_code == 201
        assert len(own.get("/v1/refusals").json()["data"]) == 2
    assert admin.get(f"/admin/tenants/{unit.slug}/refusals").json() == page


def test_reasons_stay_with_their_tenant(site: Site, admin: httpx.Client, unit: Unit) -> None:
    other = make_unit(admin)
    with site.client(unit.key) as own:
        assert own.post("/v1/adapters/hidden/versions", files={"x": ("x", b"x")}).status_code == 422
    with site.client(other.key) as attacker:
        for params in ({}, {"adapter": "hidden"}, {"tenant": unit.slug}):
            assert attacker.get("/v1/refusals", params=params).json()["data"] == []
        foreign, absent = (attacker.get(f"/admin/tenants/{slug}/refusals") for slug in (unit.slug, "nosuch"))
        assert (foreign.status_code, absent.status_code) == (404, 404)
