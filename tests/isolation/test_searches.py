"""Attacks on searched lists, on the list of all keys and on running canaries."""

import httpx
import pytest

from tests.support.serving import PeftFiles, peft_files
from tests.support.site import Site, Unit, make_unit, parts


@pytest.fixture(scope="module")
def owner(site: Site, admin: httpx.Client, files: PeftFiles, tmp_path_factory: pytest.TempPathFactory) -> Unit:
    """Tenant with a running canary."""
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        for content in (files, peft_files(tmp_path_factory.mktemp("second"), seed=2)):
            assert own.post("/v1/adapters/secret/versions", files=parts(content)).status_code == 201
        own.put("/v1/adapters/secret/aliases/default", json={"version": 1})
        assert own.put("/v1/adapters/secret/aliases/default/canary", json={"version": 2}).is_success
    return unit


@pytest.fixture(scope="module")
def attacker(admin: httpx.Client, owner: Unit) -> Unit:
    return make_unit(admin)


@pytest.mark.parametrize("path", ["/v1/adapters", "/v1/keys", "/v1/canaries"])
@pytest.mark.parametrize("text", ["secret", "' OR '1'='1", "%", "_", "\\", "*", "secret') UNION SELECT 1 --"])
def test_no_text_finds_what_is_anothers(site: Site, owner: Unit, attacker: Unit, path: str, text: str) -> None:
    params = {"q": text, "tenant": owner.slug, "sort": "-name"} if path == "/v1/adapters" else {"q": text}
    with site.client(attacker.key) as client:
        answer = client.get(path, params=params)
    assert (answer.status_code, answer.json()["data"]) == (200, [])
    assert owner.slug not in answer.text


@pytest.mark.parametrize("sort", ["name; DROP TABLE tenants", "id", "hmac", "-salt", "NAME"])
def test_no_order_names_a_column(site: Site, admin: httpx.Client, attacker: Unit, sort: str) -> None:
    with site.client(attacker.key) as client:
        for path in ("/v1/adapters", "/v1/keys"):
            assert client.get(path, params={"sort": sort}).status_code == 422
    assert admin.get("/admin/tenants", params={"sort": sort}).status_code == 422


def test_a_foreign_canary_is_in_no_list(site: Site, owner: Unit, attacker: Unit) -> None:
    with site.client(owner.key) as own:
        cursor = own.get("/v1/canaries", params={"limit": 1}).json()
    assert len(cursor["data"]) == 1
    with site.client(attacker.key) as client:
        for params in ({}, {"tenant": owner.slug}, {"cursor": "MA=="}, {"adapter": "secret"}):
            assert owner.slug not in client.get("/v1/canaries", params=params).text
        assert client.get("/admin/canaries", params={"tenant": owner.slug}).status_code == 403


def test_the_list_of_all_keys_is_the_platforms(site: Site, owner: Unit, attacker: Unit) -> None:
    with site.client(attacker.key) as client:
        for params in ({}, {"tenant": attacker.slug}, {"q": owner.key.split("_")[1]}):
            answer = client.get("/admin/keys/all", params=params)
            assert (answer.status_code, owner.key.split("_")[1] in answer.text) == (403, False)
