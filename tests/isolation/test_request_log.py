"""Attacks on lists and series of requests, and on the audit trail: no request, name or count of another tenant."""

import time

import httpx
import pytest

from tests.support.foreign_names import without
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts
from tests.support.stored_usage import RANGE, use

ROUTES = ("/v1/requests", "/v1/usage/series")


@pytest.fixture(scope="module")
def owner(site: Site, admin: httpx.Client, files: PeftFiles) -> Unit:
    """Tenant with an adapter and a request."""
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        assert own.post("/v1/adapters/secret/versions", files=parts(files)).status_code == 201
    use(site, admin, unit)
    return unit


@pytest.fixture(scope="module")
def attacker(site: Site, admin: httpx.Client, owner: Unit) -> Unit:
    return make_unit(admin)


@pytest.mark.parametrize("path", ROUTES)
def test_no_parameter_selects_another_tenant(site: Site, owner: Unit, attacker: Unit, path: str) -> None:
    key_id = owner.key.split("_")[1]
    with site.client(attacker.key) as client:
        plain = client.get(path, params=RANGE).json()
        assert plain["data"] == []
        for chosen in (
            {"tenant": owner.slug},
            {"tenant_id": "1"},
            {"owner": owner.slug},
            {"key": key_id},
            {"adapter": f"{owner.slug}/secret"},
            {"adapter": f"{owner.slug}/secret@1"},
        ):
            answer = client.get(path, params=RANGE | chosen)
            assert answer.json() == plain, chosen
            assert owner.slug not in answer.text


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("form", ["{}/secret", "{}/secret@1", "{}/nothing"])
def test_a_foreign_adapter_is_like_one_that_never_was(
    site: Site, owner: Unit, attacker: Unit, path: str, form: str
) -> None:
    with site.client(attacker.key) as client:
        foreign = client.get(path, params=RANGE | {"adapter": form.format(owner.slug)})
        absent = client.get(path, params=RANGE | {"adapter": form.format("nosuch")})
    assert without(owner.slug, foreign) == without("nosuch", absent)


def test_a_cursor_of_another_tenant_opens_nothing(site: Site, admin: httpx.Client, owner: Unit, attacker: Unit) -> None:
    use(site, admin, owner)
    with site.client(owner.key) as own:
        cursor = own.get("/v1/requests", params=RANGE | {"limit": 1}).json()["next_cursor"]
    with site.client(attacker.key) as client:
        assert client.get("/v1/requests", params=RANGE | {"cursor": cursor}).json()["data"] == []


def test_a_prompt_is_in_no_list(site: Site, admin: httpx.Client, attacker: Unit) -> None:
    secret = f"secret-{time.monotonic_ns()}"
    with site.client(attacker.key) as client:
        client.post("/v1/completions", json={"prompt": secret, "user": secret})
        texts = [client.get(path).text for path in ROUTES]
    texts += [admin.get(path).text for path in ("/admin/requests", "/admin/usage/series", "/admin/audit")]
    assert not any(secret in text for text in texts)


@pytest.mark.parametrize(
    "path", ["/admin/audit", "/admin/audit/verification", "/admin/requests", "/admin/usage/series"]
)
def test_no_tenants_key_reads_what_is_the_platforms(site: Site, owner: Unit, attacker: Unit, path: str) -> None:
    with site.client(attacker.key) as client:
        for params in ({}, {"tenant": attacker.slug}, {"tenant": owner.slug}):
            answer = client.get(path, params=params)
            assert (answer.status_code, owner.slug in answer.text) == (403, False)
