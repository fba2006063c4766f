"""Adapters and versions over HTTP: visibility, pagination, and the state after a deletion."""

import hashlib

import httpx
import pytest

from adapters.identity import content_digest
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts


def _upload(client: httpx.Client, path: str, files: PeftFiles) -> dict[str, object]:
    answer = client.post(f"{path}/versions", files=parts(files))
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_the_first_upload_makes_adapter_version_and_alias(
    site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    path = f"/admin/tenants/{unit.slug}/adapters/pricing"
    answer = admin.post(f"{path}/versions", files=parts(files))
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"{path}/versions/1"
    version = answer.json()
    digest = content_digest(hashlib.sha256(files.config).hexdigest(), hashlib.sha256(files.weights).hexdigest())
    assert version | {"created_at": None, "manifest": None, "provenance": None} == {
        "adapter": "pricing",
        "version": 1,
        "name": "pricing@1",
        "state": "ready",
        "digest": f"sha256:{digest}",
        "size_bytes": len(files.config) + len(files.weights),
        "rank": 4,
        "created_at": None,
        "created_by": site.admin_key.split("_")[1],
        "aliases": ["default"],
        "pinned": False,
        "manifest": None,
        "provenance": None,
        "state_reason": None,
        "labels": {},
        "card": "",
        "defaults": {},
        "warnings": [],
    }
    assert version["manifest"]["peft_type"] == "LORA"
    assert admin.get(answer.headers["location"]).json() == version
    assert admin.get(path).json() | {"created_at": None, "limits": None} == {
        "name": "pricing",
        "tenant": unit.slug,
        "created_at": None,
        "versions": [1],
        "aliases": {"default": {"1": 100}},
        "limits": None,
    }


def test_a_tenants_key_sees_itself_under_v1_as_an_admin_sees_it(
    site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    with site.client(unit.key) as own:
        version = _upload(own, "/v1/adapters/pricing", files)
        for suffix in ("", "/pricing", "/pricing/versions", "/pricing/versions/1"):
            mine = own.get(f"/v1/adapters{suffix}")
            assert mine.status_code == 200
            assert mine.json() == own.get(f"/admin/tenants/{unit.slug}/adapters{suffix}").json()
            assert mine.json() == admin.get(f"/admin/tenants/{unit.slug}/adapters{suffix}").json()
    assert version["created_by"] == unit.key.split("_")[1]


def test_foreign_objects_look_nonexistent(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    _upload(admin, f"/admin/tenants/{unit.slug}/adapters/pricing", files)
    with site.client(make_unit(admin).key) as stranger:
        for method, suffix in (
            ("GET", ""),
            ("GET", "/pricing"),
            ("GET", "/pricing/versions"),
            ("GET", "/pricing/versions/1"),
            ("DELETE", "/pricing"),
            ("DELETE", "/pricing/versions/1"),
            ("POST", "/pricing/versions"),
        ):
            theirs = stranger.request(method, f"/admin/tenants/{unit.slug}/adapters{suffix}")
            absent = stranger.request(method, f"/admin/tenants/absent{unit.slug[6:]}/adapters{suffix}")
            assert theirs.status_code == absent.status_code == 404
            assert theirs.text.replace(unit.slug, "X") == absent.text.replace(f"absent{unit.slug[6:]}", "X")
        assert stranger.get("/v1/adapters/pricing").status_code == 404
        assert stranger.get("/v1/adapters").json() == {"data": [], "next_cursor": None}
    assert admin.get(f"/admin/tenants/{unit.slug}/adapters/pricing").json()["versions"] == [1]


@pytest.mark.parametrize(
    ("scopes", "method", "path", "scope"),
    [
        (["inference"], "GET", "/v1/adapters", "adapters:read"),
        (["adapters:write"], "GET", "/v1/adapters/pricing", "adapters:read"),
        (["adapters:read"], "POST", "/v1/adapters/pricing/versions", "adapters:write"),
        (["adapters:read"], "DELETE", "/v1/adapters/pricing", "adapters:write"),
        (["adapters:read"], "DELETE", "/v1/adapters/pricing/versions/1", "adapters:write"),
    ],
)
def test_a_missing_scope_is_named(
    site: Site, admin: httpx.Client, unit: Unit, scopes: list[str], method: str, path: str, scope: str
) -> None:
    key = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "narrow", "scopes": scopes}).json()["key"]
    with site.client(key) as narrow:
        answer = narrow.request(method, path)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "insufficient_scope"
    assert scope in answer.json()["error"]["message"]


def test_a_platform_key_has_no_adapters_of_its_own(admin: httpx.Client) -> None:
    assert admin.get("/v1/adapters").status_code == 403


def test_lists_go_on_where_the_page_before_ended(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    path = f"/admin/tenants/{unit.slug}/adapters"
    for name in ("a", "b", "c"):
        _upload(admin, f"{path}/{name}", files)
    first = admin.get(path, params={"limit": 2}).json()
    second = admin.get(path, params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [adapter["name"] for adapter in first["data"]] == ["a", "b"]
    assert [adapter["name"] for adapter in second["data"]] == ["c"]
    assert second["next_cursor"] is None


def test_deleting_a_version_moves_default_and_removes_its_bytes(
    site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles, other_files: PeftFiles
) -> None:
    path = f"/admin/tenants/{unit.slug}/adapters/pricing"
    _upload(admin, path, files)
    _upload(admin, path, other_files)
    assert admin.get(path).json()["aliases"] == {"default": {"2": 100}}
    assert admin.delete(f"{path}/versions/2", params={"force": True}).status_code == 202
    assert admin.get(path).json() | {"created_at": None, "tenant": None, "limits": None} == {
        "name": "pricing",
        "tenant": None,
        "created_at": None,
        "versions": [1],
        "aliases": {"default": {"1": 100}},
        "limits": None,
    }
    assert admin.get(f"{path}/versions/2").status_code == 404
    assert admin.delete(f"{path}/versions/2").status_code == 404


def test_deleting_an_adapter_frees_its_name(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    path = f"/admin/tenants/{unit.slug}/adapters/pricing"
    _upload(admin, path, files)
    assert admin.delete(f"/admin/tenants/{unit.slug}").status_code == 409
    assert admin.delete(path, params={"force": True}).status_code == 202
    assert admin.get(path).status_code == 404
    assert _upload(admin, path, files)["version"] == 1


@pytest.mark.parametrize("number", ["0", "-1", "x", "99999999999999999999"])
def test_a_version_number_is_checked(admin: httpx.Client, unit: Unit, number: str) -> None:
    answer = admin.get(f"/admin/tenants/{unit.slug}/adapters/pricing/versions/{number}")
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "number"
