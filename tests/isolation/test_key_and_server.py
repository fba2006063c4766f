"""A key's own routes, ``/v1/key`` and ``/v1/server``, show nothing of other tenants."""

import httpx

from tests.support.serving import PeftFiles
from tests.support.site import Site, make_unit, parts

ROUTES = ("/v1/key", "/v1/server")


def test_other_tenants_change_nothing_in_them(site: Site, admin: httpx.Client, files: PeftFiles) -> None:
    unit = make_unit(admin)
    with site.client(unit.key) as client:
        before = [client.get(route).text for route in ROUTES]
        other = make_unit(admin)
        with site.client(other.key) as theirs:
            assert theirs.post("/v1/adapters/secret/versions", files=parts(files)).status_code == 201
        after = [client.get(route).text for route in ROUTES]
    assert after == before
    for text in after:
        assert other.slug not in text
        assert "secret" not in text
    assert unit.key.rpartition("_")[2] not in after[0]


def test_names_in_the_request_select_no_other_key(site: Site, admin: httpx.Client) -> None:
    unit, other = make_unit(admin), make_unit(admin)
    other_id = other.key.split("_")[1]
    with site.client(unit.key) as client:
        own = client.get("/v1/key").json()
        for query in ({"key_id": other_id}, {"id": other_id}, {"tenant": other.slug}):
            assert client.get("/v1/key", params=query).json() == own
        for path in (f"/v1/key/{other_id}", f"/v1/server/{other.slug}"):
            assert client.get(path).status_code == 404


def test_a_key_from_another_network_is_refused(site: Site, admin: httpx.Client) -> None:
    unit = make_unit(admin)
    body = {"name": "elsewhere", "addresses": ["203.0.113.0/24"]}
    key = admin.post(f"/admin/tenants/{unit.slug}/keys", json=body).json()["key"]
    with site.client(key) as client:
        assert [client.get(route).status_code for route in ROUTES] == [403, 403]
