"""Restricted keys reach nothing else of their tenant, by any name or from any other address."""

import uuid

import httpx
import pytest

from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

ALLOWED, OTHER = "prices", "margins"
MESSAGE = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture(scope="module")
def unit(site: Site, admin: httpx.Client, files: PeftFiles) -> Unit:
    """Tenant with two adapters."""
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        for adapter in (ALLOWED, OTHER):
            assert own.post(f"/v1/adapters/{adapter}/versions", files=parts(files)).status_code == 201
    return unit


def key(admin: httpx.Client, unit: Unit, **restrictions: object) -> str:
    body = {"name": uuid.uuid4().hex, "scopes": ["inference", "adapters:read"], **restrictions}
    answer = admin.post(f"/admin/tenants/{unit.slug}/keys", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["key"])


def asked(site: Site, text: str, model: str) -> list[httpx.Response]:
    """Return the answers of every route that names a model."""
    with site.client(text) as client:
        return [
            client.post("/v1/completions", json={"prompt": "x", "model": model}),
            client.post("/v1/completions", json={"prompt": "x", "adapter_id": model}),
            client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}], "model": model}),
            client.post("/v1/responses", json={"input": "x", "model": model}),
            client.post("/v1/messages", json=MESSAGE | {"max_tokens": 1, "model": model}),
            client.post("/generate", json={"inputs": "x", "parameters": {"adapter_id": model}}),
            client.post("/v1/messages/count_tokens", json=MESSAGE | {"model": model}),
            client.post("/v1/tokenize", json={"prompt": "x", "model": model}),
            client.post("/v1/detokenize", json={"tokens": [1], "model": model}),
            client.get(f"/v1/models/{model}"),
        ]


def test_other_adapters_are_refused_by_every_name(site: Site, admin: httpx.Client, unit: Unit) -> None:
    text = key(admin, unit, adapters=[ALLOWED])
    names = (OTHER, f"{OTHER}@1", f"{OTHER}:default", f"{unit.slug}/{OTHER}", "nothing", "tiny-llama")
    for name in names:
        answers = asked(site, text, name)
        assert {answer.status_code for answer in answers} == {403}, name
        assert all("restricted to certain adapters" in answer.text for answer in answers)
    with site.client(text) as client:
        # Without a name the request means the base model.
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 403
        assert client.post("/generate", json={"inputs": "x"}).status_code == 403


def test_its_own_adapter_works_by_every_name(site: Site, admin: httpx.Client, unit: Unit) -> None:
    text = key(admin, unit, adapters=[ALLOWED])
    for name in (ALLOWED, f"{ALLOWED}@1", f"{ALLOWED}:default", f"{unit.slug}/{ALLOWED}"):
        # There is no engine here, and the base has no tokenizer.
        statuses = [answer.status_code for answer in asked(site, text, name)]
        assert statuses == [503] * 6 + [400] * 3 + [200]


def test_only_what_it_may_use_is_listed(site: Site, admin: httpx.Client, unit: Unit) -> None:
    def listed(text: str) -> list[str]:
        with site.client(text) as client:
            return sorted(model["id"] for model in client.get("/v1/models").json()["data"])

    assert listed(key(admin, unit, adapters=[ALLOWED])) == [ALLOWED]
    assert listed(key(admin, unit, adapters=[])) == []
    assert listed(key(admin, unit)) == sorted([ALLOWED, OTHER, "tiny-llama"])


@pytest.mark.parametrize("path", ["/v1/models", "/v1/adapters", "/v1/quota", "/v1/engine"])
def test_from_elsewhere_no_route_answers(site: Site, admin: httpx.Client, unit: Unit, path: str) -> None:
    near, far = key(admin, unit, addresses=["127.0.0.0/8"]), key(admin, unit, addresses=["203.0.113.0/24"])
    for text, status in ((near, 200), (far, 403)):
        with site.client(text) as client:
            assert client.get(path).status_code == status
            refused = client.post("/v1/completions", json={"prompt": "x"})
            assert refused.status_code == (503 if status == 200 else 403)


def test_a_header_lies_about_an_address_only_through_a_proxy(site: Site, admin: httpx.Client, unit: Unit) -> None:
    """The server trusts ``X-Forwarded-For`` only from proxies on this machine, and only its last address."""
    text = key(admin, unit, addresses=["203.0.113.0/24"])
    with site.client(text) as client:
        for claimed, status in (("203.0.113.9", 200), ("203.0.113.9, 198.51.100.1", 403), ("198.51.100.1", 403)):
            assert client.get("/v1/models", headers={"x-forwarded-for": claimed}).status_code == status


def test_a_restriction_that_is_set_later_holds_at_once(site: Site, admin: httpx.Client, unit: Unit) -> None:
    text = key(admin, unit)
    path = f"/admin/tenants/{unit.slug}/keys/{text.split('_')[1]}"
    with site.client(text) as client:
        assert client.get(f"/v1/models/{OTHER}").status_code == 200
        assert admin.patch(path, json={"adapters": [ALLOWED]}).json()["adapters"] == [ALLOWED]
        assert client.get(f"/v1/models/{OTHER}").status_code == 403
        rotated = admin.post(f"{path}/rotate", json={}).json()
        assert rotated["adapters"] == [ALLOWED]
        assert admin.patch(path, json={"adapters": None}).status_code == 200
        assert client.get(f"/v1/models/{OTHER}").status_code == 200
