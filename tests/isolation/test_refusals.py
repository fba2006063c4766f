"""Attacks on the stored reasons of refused uploads: those of others, by keys without the scope, and as markup."""

import base64
import json

import httpx
import pytest

from tests.support.console_session import signed_in
from tests.support.foreign_names import without
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def owner(site: Site, admin: httpx.Client, files: PeftFiles) -> Unit:
    """Tenant with two refused uploads, of which one has markup in the names of its files and of its keys."""
    unit = make_unit(admin)
    config = json.dumps(json.loads(files.config) | {HOSTILE: HOSTILE}).encode()
    with site.client(unit.key) as own:
        for uploaded in (parts(PeftFiles(config, files.weights)), {HOSTILE: (HOSTILE, b"x")}):
            assert own.post("/v1/adapters/secret/versions", files=uploaded).status_code == 422
    return unit


@pytest.fixture(scope="module")
def attacker(admin: httpx.Client, owner: Unit) -> Unit:
    return make_unit(admin)


def test_no_parameter_selects_anothers_refusals(site: Site, owner: Unit, attacker: Unit) -> None:
    with site.client(attacker.key) as client:
        for params in (
            {"adapter": "secret"},
            {"tenant": owner.slug},
            {"tenant_id": "1"},
            {"key": owner.key.split("_")[1]},
            {"id": "1"},
        ):
            answer = client.get("/v1/refusals", params=params)
            assert (answer.status_code, answer.json()) == (200, {"data": [], "next_cursor": None}), params


def test_guessed_ids_and_cursors_of_others_open_nothing(site: Site, owner: Unit, attacker: Unit) -> None:
    with site.client(owner.key) as own:
        stolen = own.get("/v1/refusals", params={"limit": 1}).json()["next_cursor"]
    guessed = [base64.urlsafe_b64encode(str(number).encode()).decode() for number in (1, 2, 3, 100, 9_999_999_999)]
    with site.client(attacker.key) as client:
        for cursor in (stolen, *guessed):
            assert client.get("/v1/refusals", params={"cursor": cursor}).json()["data"] == []
        for wrong in ("MA==", "LTE=", "MSBPUiAx", "MScgT1IgMT0x", "%00", "1"):
            assert client.get("/v1/refusals", params={"cursor": wrong}).status_code == 400
        for path in ("1", "2", "secret"):
            assert client.get(f"/v1/refusals/{path}").status_code == 404


def test_the_path_of_another_tenant_looks_absent(site: Site, owner: Unit, attacker: Unit) -> None:
    with site.client(attacker.key) as client:
        for params in ({}, {"adapter": "secret"}, {"limit": "1"}):
            foreign = client.get(f"/admin/tenants/{owner.slug}/refusals", params=params)
            absent = client.get("/admin/tenants/nosuch/refusals", params=params)
            assert foreign.status_code == 404
            assert without(owner.slug, foreign) == without("nosuch", absent)


@pytest.mark.parametrize("scope", ["inference", "batch", "adapters:write", "usage:read", "keys:write"])
def test_a_key_without_the_scope_reads_no_reason(site: Site, admin: httpx.Client, owner: Unit, scope: str) -> None:
    body = {"name": scope, "scopes": [scope]}
    weak = admin.post(f"/admin/tenants/{owner.slug}/keys", json=body).json()["key"]
    paths = ("/v1/refusals", f"/admin/tenants/{owner.slug}/refusals")
    with site.client(weak) as client, signed_in(site, weak) as session:
        for path in paths:
            for answer in (client.get(path), session.get(path)):
                assert (answer.status_code, "secret" in answer.text) == (403, False), path


def test_markup_in_reasons_stays_data(site: Site, owner: Unit) -> None:
    with site.client(owner.key) as own:
        answer = own.get("/v1/refusals", headers={"accept": "text/html"})
    assert answer.headers["content-type"] == "application/json"
    newest, oldest = answer.json()["data"][:2]
    assert HOSTILE in json.dumps(oldest["reasons"]), oldest
    assert HOSTILE in json.dumps(newest["reasons"]), newest


def test_a_flood_of_refusals_removes_only_its_own(site: Site, owner: Unit, attacker: Unit) -> None:
    with site.client(owner.key) as own, site.client(attacker.key) as client:
        before = own.get("/v1/refusals").json()
        for number in range(220):
            answer = client.post(f"/v1/adapters/a{number}/versions", files={"x": ("x", b"x")})
            assert answer.status_code in {422, 429}
        assert own.get("/v1/refusals").json() == before
        assert len(client.get("/v1/refusals", params={"limit": 1000}).json().get("data", [])) <= 200


def test_what_an_operator_uploads_names_no_operator(site: Site, admin: httpx.Client, owner: Unit) -> None:
    path = f"/admin/tenants/{owner.slug}/adapters/mine/versions"
    assert admin.post(path, files={"x": ("x", b"x")}).status_code == 422
    with site.client(owner.key) as own:
        (found,) = own.get("/v1/refusals", params={"adapter": "mine"}).json()["data"]
    assert found["key_name"] is None
