"""Delete, retire and restore over HTTP."""

import asyncio
import hashlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.database.session import Database
from app.database.urls import database_url
from app.engine.port import SmokeResult
from app.services.catalog.adapters import AdapterService
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts


def publish(client: httpx.Client, path: str, files: PeftFiles) -> dict[str, Any]:
    answer = client.post(f"{path}/versions", files=parts(files))
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def ended(client: httpx.Client, location: str) -> dict[str, Any]:
    for _ in range(600):
        report = client.get(location).json()
        if report["state"] == "finished":
            return dict(report)
        time.sleep(0.05)
    raise AssertionError(f"it did not end: {report}")


def digests(files: PeftFiles) -> set[str]:
    return {hashlib.sha256(content).hexdigest() for content in (files.config, files.weights)}


@pytest.fixture
def path(unit: Unit) -> str:
    return f"/admin/tenants/{unit.slug}/adapters/pricing"


@pytest.fixture
def own(site: Site, unit: Unit) -> Iterator[httpx.Client]:
    with site.client(unit.key) as client:
        yield client


def test_a_deletion_says_what_is_verified_gone_and_when(
    site: Site, admin: httpx.Client, own: httpx.Client, unit: Unit, path: str, files: PeftFiles
) -> None:
    version = publish(admin, path, files)
    before = site.blobs
    refused = admin.delete(f"{path}/versions/1")
    assert refused.status_code == 409
    assert "pricing@1 is held by the alias 'default'" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    answer = admin.delete(f"{path}/versions/1", params={"force": "true"})
    assert answer.status_code == 202
    begun = answer.json()
    assert answer.headers["location"] == f"/admin/tenants/{unit.slug}/deletions/{begun['id']}"
    assert admin.get(f"{path}/versions/1").status_code == 404
    report = ended(admin, answer.headers["location"])
    assert (report["tenant"], report["subject"], report["forced"]) == (unit.slug, "pricing@1", True)
    assert report["listings_gone_at"] == report["requested_at"]
    assert report["versions"] == [{"name": "pricing@1", "digest": version["digest"], "kept_on_disk": None}]
    (node,) = report["nodes"]
    assert node["engine_gone_at"]
    assert node["disk_gone_at"]
    assert node["name"]
    gone = {blob["digest"] for blob in report["blobs"] if blob["gone_at"]}
    kept = {blob["digest"] for blob in report["blobs"] if blob["kept"] == "another version has the same bytes"}
    # Another test's adapter may have the same configuration. The weights exist only here.
    assert (gone | kept, gone & kept) == (digests(files), set())
    assert hashlib.sha256(files.weights).hexdigest() in gone
    assert before - site.blobs == gone
    assert admin.get("/admin/deletions").json()["data"][0] == report
    assert admin.get(f"/admin/deletions/{report['id']}").json() == report
    mine = own.get(f"/v1/deletions/{report['id']}").json()
    # A tenant learns neither node names nor whether another tenant has the same bytes.
    assert mine | {"nodes": []} == report | {"nodes": [], "blobs": []}
    assert mine["nodes"] == [node | {"name": None}]
    assert own.get("/v1/deletions").json()["data"] == [mine]


def test_a_tenant_deletes_its_own_and_gets_a_report(own: httpx.Client, files: PeftFiles) -> None:
    publish(own, "/v1/adapters/pricing", files)
    answer = own.delete("/v1/adapters/pricing", params={"force": "true"})
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/deletions/{answer.json()['id']}"
    assert ended(own, answer.headers["location"])["subject"] == "pricing"


def test_foreign_reports_look_nonexistent(
    site: Site, admin: httpx.Client, unit: Unit, path: str, files: PeftFiles
) -> None:
    publish(admin, path, files)
    report = admin.delete(path, params={"force": "true"}).json()
    with site.client(make_unit(admin).key) as stranger:
        assert stranger.get("/v1/deletions").json()["data"] == []
        theirs, absent = stranger.get(f"/v1/deletions/{report['id']}"), stranger.get(f"/v1/deletions/{'0' * 32}")
        assert theirs.status_code == absent.status_code == 404
        assert theirs.text.replace(report["id"], "X") == absent.text.replace("0" * 32, "X")
        for suffix in ("", f"/{report['id']}"):
            assert stranger.get(f"/admin/tenants/{unit.slug}/deletions{suffix}").status_code == 404
            assert stranger.get(f"/admin/deletions{suffix}").status_code == 403
        for method, route in (("POST", "retire"), ("POST", "restore")):
            answer = stranger.request(method, f"{path}/versions/1/{route}", json={"reason": "mine"})
            unknowns = stranger.request(
                method, f"/admin/tenants/nosuch/adapters/pricing/versions/1/{route}", json={"reason": "mine"}
            )
            assert answer.status_code == unknowns.status_code == 404
            assert answer.text.replace(unit.slug, "nosuch") == unknowns.text


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("POST", "/v1/adapters/pricing/versions/1/retire", "adapters:write"),
        ("POST", "/v1/adapters/pricing/versions/1/restore", "adapters:write"),
        ("GET", "/v1/deletions", "adapters:read"),
        ("GET", "/v1/events", "adapters:read"),
    ],
)
def test_a_missing_scope_is_named(
    site: Site, admin: httpx.Client, unit: Unit, method: str, path: str, scope: str
) -> None:
    body = {"name": "narrow", "scopes": ["inference"]}
    key = admin.post(f"/admin/tenants/{unit.slug}/keys", json=body).json()["key"]
    with site.client(key) as narrow:
        answer = narrow.request(method, path, json={"reason": "r"} if method == "POST" else None)
    assert answer.status_code == 403
    assert scope in answer.json()["error"]["message"]


def ask(client: httpx.Client, model: str) -> httpx.Response:
    return client.post("/v1/completions", json={"model": model, "prompt": "x"})


def test_a_retired_version_answers_410_with_the_reason(
    admin: httpx.Client, own: httpx.Client, path: str, files: PeftFiles, other_files: PeftFiles
) -> None:
    publish(admin, path, files)
    publish(admin, path, other_files)
    held = admin.post(f"{path}/versions/2/retire", json={"reason": "superseded"})
    assert held.status_code == 409
    assert "the alias 'default'" in held.json()["error"]["message"]
    assert ask(own, "pricing@1").status_code == 503  # no engine runs here: 503 means that the name was resolved
    retired = admin.post(f"{path}/versions/1/retire", json={"reason": "prices of 2025"})
    assert retired.status_code == 200
    assert (retired.json()["state"], retired.json()["version"]) == ("retired", 1)
    gone = ask(own, "pricing@1")
    assert gone.status_code == 410
    assert gone.json()["error"]["code"] == "adapter_retired"
    assert "prices of 2025" in gone.json()["error"]["message"]
    lorax = own.post("/generate", json={"inputs": "x", "parameters": {"adapter_id": "pricing@1"}})
    assert lorax.status_code == 410
    again = admin.post(f"{path}/versions/1/retire", json={"reason": "again"})
    assert again.status_code == 409
    assert "pricing@1 is retired, but must be ready." in again.json()["error"]["message"]
    restored = own.post("/v1/adapters/pricing/versions/1/restore")
    assert (restored.status_code, restored.json()["state"]) == (200, "ready")
    assert ask(own, "pricing@1").status_code == 503
    assert admin.post(f"{path}/versions/1/restore").status_code == 409


def test_with_force_the_aliases_go_elsewhere(
    admin: httpx.Client, path: str, files: PeftFiles, other_files: PeftFiles
) -> None:
    publish(admin, path, files)
    publish(admin, path, other_files)
    body = {"reason": "superseded"}
    assert admin.post(f"{path}/versions/2/retire", json=body, params={"force": "true"}).status_code == 200
    assert admin.get(f"{path}/versions/1").json()["aliases"] == ["default"]
    assert admin.post(f"{path}/versions/1/retire", json=body, params={"force": "true"}).status_code == 200
    assert admin.get(path).json()["aliases"] == {}
    assert admin.post(f"{path}/versions/1/restore").json()["aliases"] == ["default"]


@pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": "x" * 501}, {"reason": "a\nb"}, {"reason": 1}])
def test_a_reason_is_needed(admin: httpx.Client, path: str, body: dict[str, object]) -> None:
    answer = admin.post(f"{path}/versions/1/retire", json=body)
    assert answer.status_code in {400, 422}
    assert "reason" in answer.json()["error"]["message"] + str(answer.json()["error"]["param"])


def test_a_new_smoke_check_lifts_a_quarantine(
    site: Site, admin: httpx.Client, own: httpx.Client, path: str, files: PeftFiles
) -> None:
    publish(admin, path, files)
    version_id = site.engine.smoked[-1]
    quarantine(site, version_id)
    assert admin.get(f"{path}/versions/1").json()["state"] == "quarantined"
    assert own.post("/v1/adapters/pricing/versions/1/restore").status_code == 403
    site.engine.smoke_result = SmokeResult(finite=False, has_effect=True)
    try:
        failed = admin.post(f"{path}/versions/1/restore")
    finally:
        site.engine.smoke_result = SmokeResult(finite=True, has_effect=True)
    assert failed.status_code == 422
    assert admin.get(f"{path}/versions/1").json()["state"] == "quarantined"
    restored = admin.post(f"{path}/versions/1/restore")
    assert (restored.status_code, restored.json()["state"]) == (200, "ready")


def quarantine(site: Site, version_id: int) -> None:
    async def run() -> None:
        database = Database(database_url(site.settings))
        await AdapterService(database, base_name="", base_digest="").quarantine(version_id, "it did not load")
        await database.close()

    asyncio.run(run())


def test_a_rejected_version_keeps_its_row_and_frees_its_bytes(
    site: Site, admin: httpx.Client, unit: Unit, path: str, files: PeftFiles
) -> None:
    before = site.blobs
    site.engine.smoke_result = SmokeResult(finite=False, has_effect=True)
    try:
        refused = admin.post(f"{path}/versions", files=parts(files))
    finally:
        site.engine.smoke_result = SmokeResult(finite=True, has_effect=True)
    assert refused.status_code == 422
    (deletion,) = admin.get(f"/admin/tenants/{unit.slug}/deletions").json()["data"]
    report = ended(admin, f"/admin/tenants/{unit.slug}/deletions/{deletion['id']}")
    assert hashlib.sha256(files.weights).hexdigest() in {blob["digest"] for blob in report["blobs"] if blob["gone_at"]}
    assert site.blobs == before
    assert admin.get(f"{path}/versions/1").json()["state"] == "rejected"
