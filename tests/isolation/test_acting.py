"""Attacks on acting as a tenant: only operators act, only for inference, and each request leaves a row."""

import httpx
import pytest

from tests.support.console_session import signed_in
from tests.support.foreign_names import calls, without
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

HEADER = "x-tenora-tenant"


@pytest.fixture(scope="module")
def owner(site: Site, admin: httpx.Client, files: PeftFiles) -> Unit:
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        assert own.post("/v1/adapters/secret/versions", files=parts(files)).status_code == 201
    return unit


@pytest.fixture(scope="module")
def attacker(admin: httpx.Client, owner: Unit) -> Unit:
    return make_unit(admin)


def acts(admin: httpx.Client, tenant: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = admin.get("/admin/audit", params={"tenant": tenant, "action": "tenant.act"}).json()[
        "data"
    ]
    return rows


def test_an_operator_sees_and_uses_what_the_tenant_does(site: Site, admin: httpx.Client, owner: Unit) -> None:
    before = len(acts(admin, owner.slug))
    with site.client(owner.key) as own:
        expected = own.get("/v1/models").json()
    assert admin.get("/v1/models", headers={HEADER: owner.slug}).json() == expected
    body = {"model": "secret", "prompt": "x"}
    # There is no engine here: the name was resolved.
    answer = admin.post("/v1/completions", json=body, headers={HEADER: owner.slug})
    assert answer.status_code == 503, answer.text
    newest, oldest, *earlier = acts(admin, owner.slug)
    assert len(earlier) == before
    assert newest["actor"] == site.admin_key.split("_")[1]
    assert newest["after"] == {"request": "POST /v1/completions", "request_id": answer.headers["x-request-id"]}
    assert oldest["after"]["request"] == "GET /v1/models"  # type: ignore[index]


@pytest.mark.parametrize("slug", ["owner", "own", "absent", ""])
def test_no_tenants_key_acts_as_anyone(site: Site, admin: httpx.Client, owner: Unit, attacker: Unit, slug: str) -> None:
    named = {"owner": owner.slug, "own": attacker.slug, "absent": "nosuch", "": ""}[slug]
    before = len(acts(admin, owner.slug))
    with site.client(attacker.key) as client:
        answers = [client.post(path, json=body, headers={HEADER: named}) for path, body in calls("secret")]
        answers.append(client.get("/v1/models", headers={HEADER: named}))
        assert {answer.status_code for answer in answers} == {403}
        absent = client.get("/v1/models", headers={HEADER: "nosuch"})
        assert without(named, answers[-1]) == without("nosuch", absent)
    assert len(acts(admin, owner.slug)) == before


def test_a_key_for_metrics_and_a_session_gain_nothing(
    site: Site, admin: httpx.Client, owner: Unit, attacker: Unit
) -> None:
    metrics = admin.post("/admin/keys", json={"name": "prometheus", "scopes": ["metrics"]}).json()["key"]
    with site.client(metrics) as client:
        assert client.get("/v1/models", headers={HEADER: owner.slug}).status_code == 403
    with signed_in(site, attacker.key) as client:
        assert client.get("/v1/models", headers={HEADER: owner.slug}).status_code == 403


def test_an_operator_acts_for_inference_only(admin: httpx.Client, owner: Unit) -> None:
    before = len(acts(admin, owner.slug))
    for method, path in (
        ("GET", "/v1/adapters"),
        ("GET", "/v1/usage"),
        ("GET", "/v1/keys"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/limits"),
        ("DELETE", "/v1/adapters/secret"),
    ):
        answer = admin.request(method, path, headers={HEADER: owner.slug}, json={"name": "x"})
        assert answer.status_code == 403, path
    assert admin.get("/v1/key", headers={HEADER: owner.slug}).json()["tenant"] is None
    assert len(acts(admin, owner.slug)) == before


def test_an_operator_acts_as_no_absent_or_disabled_tenant(admin: httpx.Client) -> None:
    disabled = make_unit(admin)
    admin.patch(f"/admin/tenants/{disabled.slug}", json={"disabled": True})
    for slug, status in ((disabled.slug, 409), ("nosuch", 404), ("", 404), ("../x", 404)):
        assert admin.get("/v1/models", headers={HEADER: slug}).status_code == status
    assert acts(admin, disabled.slug) == []


def test_without_the_header_a_platform_key_infers_nothing(admin: httpx.Client) -> None:
    for path, body in calls("secret"):
        assert admin.post(path, json=body).status_code == 403
