"""Sharing over HTTP, from the owner's and from the recipient's side."""

import json
from typing import Any

import httpx
import pytest

from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

#: Status of a request that resolved to a usable version while no engine runs.
RESOLVED = 503


@pytest.fixture
def other(admin: httpx.Client) -> Unit:
    return make_unit(admin)


@pytest.fixture
def version(site: Site, unit: Unit, files: PeftFiles) -> dict[str, Any]:
    """The unit's ``pricing@1``."""
    options = {"labels": {"team": "x"}, "card": "about prices", "training_run": "https://runs.example/7"}
    with site.client(unit.key) as own:
        body: dict[str, Any] = {**parts(files), "options": (None, json.dumps(options))}
        answer = own.post("/v1/adapters/pricing/versions", files=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def infer(client: httpx.Client, model: str) -> int:
    return client.post("/v1/completions", json={"model": model, "prompt": "x"}).status_code


def test_from_sharing_to_revoking(site: Site, unit: Unit, other: Unit, version: dict[str, Any]) -> None:
    share = f"/v1/adapters/pricing/shares/{other.slug}"
    name = f"{unit.slug}/pricing"
    with site.client(unit.key) as own, site.client(other.key) as theirs:
        assert (theirs.get("/v1/shared").json()["data"], infer(theirs, name)) == ([], 404)
        made = own.put(share)
        assert made.status_code == 201, made.text
        assert made.json() | {"created_at": None} == {
            "recipient": other.slug,
            "recipient_exists": None,
            "created_at": None,
            "created_by": unit.key.split("_")[1],
        }
        assert own.put(share).status_code == 200
        assert own.put(share).json() == made.json()
        assert own.get("/v1/adapters/pricing/shares").json() == {"data": [made.json()], "next_cursor": None}
        for form in (name, f"{name}:default", f"{name}@1"):
            assert infer(theirs, form) == RESOLVED
        assert infer(theirs, "pricing") == 404
        assert own.delete(share).status_code == 204
        assert (theirs.get("/v1/shared").json()["data"], infer(theirs, name)) == ([], 404)
        assert own.delete(share).status_code == 404
        assert own.get("/v1/adapters/pricing/shares").json()["data"] == []


def test_what_the_recipient_sees_and_does_not(
    site: Site, admin: httpx.Client, unit: Unit, other: Unit, version: dict[str, Any]
) -> None:
    name = f"{unit.slug}/pricing"
    assert admin.put(f"/admin/tenants/{unit.slug}/adapters/pricing/shares/{other.slug}").status_code == 201
    with site.client(other.key) as theirs:
        (listed,) = theirs.get("/v1/shared").json()["data"]
        assert listed | {"shared_at": None} == {
            "name": name,
            "owner": unit.slug,
            "adapter": "pricing",
            "shared_at": None,
            "versions": [1],
            "aliases": {"default": {"1": 100}},
        }
        assert theirs.get(f"/v1/shared/{name}").json() == listed
        shown = theirs.get(f"/v1/shared/{name}/versions/1").json()
        assert theirs.get(f"/v1/shared/{name}/versions").json()["data"] == [shown]
        assert shown["name"] == f"{name}@1"
        for field in ("state", "digest", "size_bytes", "rank", "created_at", "aliases", "labels", "card"):
            assert shown[field] == version[field]
        assert shown["base"] == version["provenance"]["base"]
        # Keys, addresses and links of the owner stay hidden.
        for secret in (unit.key.split("_")[1], "127.0.0.1", "runs.example", "manifest", "source"):
            assert secret not in json.dumps([listed, shown])
        models = {model["id"]: model for model in theirs.get("/v1/models").json()["data"]}
        assert models[name] | {"created": None} == {
            "id": name,
            "object": "model",
            "created": None,
            "owned_by": unit.slug,
            "root": f"{name}@1",
            "parent": "tiny-llama",
        }
        assert theirs.get(f"/v1/models/{name}").json() == models[name]
        assert theirs.get(f"/v1/models/{name}@1").json()["root"] == f"{name}@1"
        assert theirs.get("/v1/adapters").json()["data"] == []
        # A platform key sees the same view as the tenant.
        assert admin.get(f"/admin/tenants/{other.slug}/shared").json()["data"] == [listed]


def test_a_shared_adapter_is_no_part_of_the_recipients_quota(
    site: Site, admin: httpx.Client, unit: Unit, other: Unit, version: dict[str, Any]
) -> None:
    admin.put(f"/admin/tenants/{unit.slug}/adapters/pricing/shares/{other.slug}")
    assert set(admin.get(f"/admin/tenants/{other.slug}").json()["used"].values()) == {0}


@pytest.mark.parametrize(
    ("scopes", "method", "path", "scope"),
    [
        (["adapters:read"], "PUT", "/v1/adapters/pricing/shares/x", "adapters:write"),
        (["adapters:read"], "DELETE", "/v1/adapters/pricing/shares/x", "adapters:write"),
        (["inference", "adapters:write"], "GET", "/v1/adapters/pricing/shares", "adapters:read"),
        (["inference", "adapters:write"], "GET", "/v1/shared", "adapters:read"),
        (["inference", "adapters:write"], "GET", "/v1/shared/a/b", "adapters:read"),
        (["inference", "adapters:write"], "GET", "/v1/shared/a/b/versions/1", "adapters:read"),
    ],
)
def test_a_missing_scope_is_named(
    site: Site, admin: httpx.Client, unit: Unit, scopes: list[str], method: str, path: str, scope: str
) -> None:
    key = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "narrow", "scopes": scopes}).json()["key"]
    with site.client(key) as narrow:
        answer = narrow.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")
    assert scope in answer.json()["error"]["message"]


def test_the_platform_is_told_of_a_slip_and_a_tenant_is_not(
    site: Site, admin: httpx.Client, unit: Unit, version: dict[str, Any]
) -> None:
    path = "adapters/pricing/shares/unknown-tenant"
    refused = admin.put(f"/admin/tenants/{unit.slug}/{path}")
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "recipient")
    with site.client(unit.key) as own:
        made = own.put(f"/v1/{path}")
        assert (made.status_code, made.json()["recipient_exists"]) == (201, None)
        assert own.get("/v1/adapters/pricing/shares").json()["data"][0]["recipient_exists"] is None
        # Only a platform key can see that the tenant mistyped the recipient.
        listed = admin.get(f"/admin/tenants/{unit.slug}/adapters/pricing/shares").json()["data"]
        assert [(share["recipient"], share["recipient_exists"]) for share in listed] == [("unknown-tenant", False)]
        oneself = own.put(f"/v1/adapters/pricing/shares/{unit.slug}")
        assert (oneself.status_code, oneself.json()["error"]["param"]) == (400, "recipient")
        for wrong in ("RETAIL", "re%20tail", "r%D0%B5tail", "retail%00", "x" * 64):
            assert own.put(f"/v1/adapters/pricing/shares/{wrong}").status_code == 422
            assert own.delete(f"/v1/adapters/pricing/shares/{wrong}").status_code == 404


def test_a_platform_key_has_nothing_shared_with_it(admin: httpx.Client) -> None:
    assert admin.get("/v1/shared").status_code == 403
