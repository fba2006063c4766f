"""Mass assignment: every client-written body with extra fields is refused by field name, and nothing changes."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

ZEROS = "0" * 64
ANNOUNCED = {name: {"size": 1, "sha256": ZEROS} for name in ("adapter_config.json", "adapter_model.safetensors")}
SOURCES = [{"version": "mine@1", "weight": 0.5}, {"version": "mine@1", "weight": 0.5}]

#: Fields that no body may set, each with a value that an attacker would want.
GREED: dict[str, Any] = {
    "id": "0" * 16,
    "tenant": "victim",
    "tenant_id": 1,
    "owner": "victim",
    "actor": "cli",
    "created_by": "cli",
    "created_at": "2000-01-01T00:00:00Z",
    "revoked_at": "2100-01-01T00:00:00Z",
    "deleted_at": "2100-01-01T00:00:00Z",
    "expires_at": "2100-01-01T00:00:00Z",
    "state": "ready",
    "hmac": ZEROS,
    "key": "tnr_mine",
    "salt": ZEROS,
    "admin": True,
    "is_admin": True,
    "digest": ZEROS,
    "lora_path": "/etc",
    "source": {"kind": "upload"},
    "uploaded_from": "10.0.0.1",
    "__class__": "Admin",
    "__proto__": {"admin": True},
}

#: Valid bodies: method, path, body. ``{t}`` is the tenant, ``{k}`` a key of it.
OF_THE_PLATFORM: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a new tenant": ("POST", "/admin/tenants", {"slug": "greedy"}),
    "a tenant": ("PATCH", "/admin/tenants/{t}", {"name": "x"}),
    "a tenant's quota": ("PATCH", "/admin/tenants/{t}", {"quota": {}}),
    "a tenant's limits": ("PATCH", "/admin/tenants/{t}", {"limits": {}}),
    "a new key": ("POST", "/admin/tenants/{t}/keys", {"name": "x", "owner": "x"}),
    "a new platform key": ("POST", "/admin/keys", {"name": "x", "owner": "x"}),
    "a key": ("PATCH", "/admin/tenants/{t}/keys/{k}", {"adapters": None, "owner": None}),
    "a key's limits": ("PATCH", "/admin/tenants/{t}/keys/{k}", {"limits": {}}),
    "a rotation": ("POST", "/admin/tenants/{t}/keys/{k}/rotate", {"grace_s": 60}),
}
OF_A_TENANT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a version": ("PATCH", "/v1/adapters/mine/versions/1", {"card": "x"}),
    "an alias": ("PUT", "/v1/adapters/mine/aliases/greedy", {"version": 1}),
    "a canary": ("PUT", "/v1/adapters/mine/aliases/default/canary", {"version": 1}),
    "a canary's policy": ("PUT", "/v1/adapters/mine/aliases/default/canary", {"version": 1, "policy": {}}),
    "a retirement": ("POST", "/v1/adapters/mine/versions/1/retire", {"reason": "x"}),
    "an upload": ("POST", "/v1/adapters/mine/uploads", {"files": ANNOUNCED}),
    "an upload's file": ("POST", "/v1/adapters/mine/uploads", {"files": {**ANNOUNCED}}),
    "an upload's options": ("POST", "/v1/adapters/mine/uploads", {"files": ANNOUNCED, "options": {}}),
    "an import": ("POST", "/v1/adapters/mine/imports", {"source": "s3://bucket/x/"}),
    "an import's options": ("POST", "/v1/adapters/mine/imports", {"source": "s3://bucket/x/", "options": {}}),
    "a merge": ("POST", "/v1/adapters/mine/merges", {"sources": SOURCES, "method": "linear"}),
    "a merge's source": ("POST", "/v1/adapters/mine/merges", {"sources": SOURCES, "method": "linear"}),
    "a version's defaults": ("PATCH", "/v1/adapters/mine/versions/1", {"defaults": {}}),
    "a key of its own": ("POST", "/v1/keys", {"name": "x", "owner": "x"}),
}
#: Position of the extra fields in such a body, if not at its top.
INSIDE = {
    "a tenant's quota": ("quota",),
    "a tenant's limits": ("limits",),
    "a key's limits": ("limits",),
    "a canary's policy": ("policy",),
    "an upload's file": ("files", "adapter_config.json"),
    "an upload's options": ("options",),
    "an import's options": ("options",),
    "a merge's source": ("sources", 0),
    "a version's defaults": ("defaults",),
}


@pytest.fixture(scope="module")
def unit(site: Site, admin: httpx.Client, files: PeftFiles) -> Unit:
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        assert own.post("/v1/adapters/mine/versions", files=parts(files)).status_code == 201
    return unit


@pytest.fixture(scope="module")
def own(site: Site, unit: Unit) -> Iterator[httpx.Client]:
    with site.client(unit.key) as client:
        yield client


def state(admin: httpx.Client, unit: Unit) -> str:
    """Return a digest of all state that an attack here could change."""
    place = f"/admin/tenants/{unit.slug}"
    paths = ("", "/keys", "/adapters", "/adapters/mine/versions/1", "/adapters/mine/aliases", "/adapters/mine/uploads")
    seen = [admin.get(place + path).text for path in paths] + [admin.get("/admin/keys").text]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def refuses_all(client: httpx.Client, unit: Unit, what: str, call: tuple[str, str, dict[str, Any]]) -> None:
    method, path, right = call
    path = path.format(t=unit.slug, k=unit.key.split("_")[1])
    for name, value in GREED.items():
        body = json.loads(json.dumps(right))
        place = body
        for step in INSIDE.get(what, ()):
            place = place[step]
        if name in place:
            continue
        place[name] = value
        answer = client.request(method, path, json=body)
        assert answer.status_code in {400, 422}, (name, answer.text)
        assert name in answer.text


@pytest.mark.parametrize("what", OF_THE_PLATFORM)
def test_the_platforms_bodies(admin: httpx.Client, unit: Unit, what: str) -> None:
    before = state(admin, unit)
    refuses_all(admin, unit, what, OF_THE_PLATFORM[what])
    assert state(admin, unit) == before
    assert admin.get("/admin/tenants/greedy").status_code == 404


@pytest.mark.parametrize("what", OF_A_TENANT)
def test_a_tenants_bodies(admin: httpx.Client, own: httpx.Client, unit: Unit, what: str) -> None:
    before = state(admin, unit)
    refuses_all(own, unit, what, OF_A_TENANT[what])
    assert state(admin, unit) == before


def test_a_published_versions_options(admin: httpx.Client, own: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    before = state(admin, unit)
    for name, value in GREED.items():
        options = ("options", json.dumps({name: value}).encode())
        answer = own.post("/v1/adapters/mine/versions", files=parts(files) | {"options": options})
        assert answer.status_code == 400, (name, answer.text)
        assert name in answer.text
    assert state(admin, unit) == before


@pytest.mark.parametrize("template", ["{{ 7 * 7 }}", "{{ messages[0]['content'] }}"])
def test_a_tenants_key_sets_no_template_that_the_server_runs(own: httpx.Client, template: str) -> None:
    path = "/v1/adapters/mine/versions/1"
    assert own.patch(path, json={"defaults": {"chat_template": template}}).status_code == 403
    assert own.get(path).json()["defaults"] == {}


@pytest.mark.parametrize("right", [call for call in OF_THE_PLATFORM.values() if call[0] == "PATCH"], ids=str)
def test_the_bodies_themselves_are_right(
    admin: httpx.Client, unit: Unit, right: tuple[str, str, dict[str, Any]]
) -> None:
    """Control: the extra field is the only reason for the refusals."""
    method, path, body = right
    answer = admin.request(method, path.format(t=unit.slug, k=unit.key.split("_")[1]), json=body)
    assert answer.status_code == 200, answer.text
