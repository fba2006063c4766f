"""Health, metrics and the OpenAPI document."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.fresh_metrics import fresh_metrics
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, parts, running_site


@pytest.fixture(scope="module")
def guarded(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server whose engine fails its health check."""
    with running_site(tmp_path_factory.mktemp("guarded"), base) as site:
        site.engine.works = False
        yield site


def test_probes_need_no_key(site: Site) -> None:
    with site.client(None) as client:
        assert client.get("/health/live").json() == {"status": "live"}
        ready = client.get("/health/ready")
    assert ready.status_code == 200
    assert ready.json() == {"status": "ready", "checks": {"engine": "ok", "database": "ok", "store": "ok"}}


def test_what_is_not_ready_is_named(guarded: Site) -> None:
    with guarded.client(None) as client:
        # The verdict may be up to a second old, because the server also probes in the background.
        while (ready := client.get("/health/ready")).is_success:
            time.sleep(0.05)
        assert client.get("/health/live").status_code == 200
    assert ready.status_code == 503
    assert ready.headers["retry-after"]
    assert ready.json() == {
        "status": "not_ready",
        "checks": {"engine": "the engine is starting", "database": "ok", "store": "ok"},
    }


def test_metrics_are_for_platform_keys(site: Site, admin: httpx.Client, unit: Unit) -> None:
    made = admin.post("/admin/keys", json={"name": "prometheus", "scopes": ["metrics"]})
    assert made.status_code == 201, made.text
    with site.client(None) as client:
        assert client.get("/metrics").status_code == 401
    with site.client("tnr_0000000000000000_" + "0" * 49) as client:
        assert client.get("/metrics").status_code == 401
    with site.client(unit.key) as client:
        assert client.get("/metrics").status_code == 403
    for key in (made.json()["key"], site.admin_key):
        with site.client(key) as client:
            answer = client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")


def test_a_key_for_metrics_does_nothing_else(site: Site, admin: httpx.Client, unit: Unit) -> None:
    key = admin.post("/admin/keys", json={"name": "prometheus", "scopes": ["metrics"]}).json()["key"]
    with site.client(key) as prometheus:
        for path in ("/admin/tenants", "/admin/keys", "/admin/engine", "/admin/events", "/admin/usage", "/v1/usage"):
            assert prometheus.get(path).status_code == 403, path
        for path in (
            f"/admin/tenants/{unit.slug}",
            f"/admin/tenants/{unit.slug}/adapters",
            "/v1/adapters",
            "/v1/events",
        ):
            assert prometheus.get(path).status_code in {403, 404}, path
        assert prometheus.get("/v1/models").status_code == 403
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/generate", {"inputs": "x"})):
            assert prometheus.post(path, json=body).status_code == 403
        assert prometheus.post("/admin/keys", json={"name": "more", "scopes": ["admin"]}).status_code == 403


def test_tenants_keys_get_no_scope_for_metrics(admin: httpx.Client, unit: Unit) -> None:
    answer = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "x", "scopes": ["metrics"]})
    assert answer.status_code == 400
    assert "metrics" not in answer.json()["error"]["message"].partition("must be")[2]


def test_a_setting_opens_metrics(base: Path, tmp_path: Path) -> None:
    with running_site(tmp_path, base, metrics_key_required=False) as site, site.client(None) as anyone:
        assert anyone.get("/metrics").status_code == 200


def test_metrics_are_rendered_once_for_all_who_ask_at_once(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.wiring.engine_metrics.RENDERED_EVERY_S", 3600.0)
    with running_site(tmp_path, base, metrics_key_required=False) as site:

        def ask(_: int) -> str:
            with site.client(None) as anyone:
                return anyone.get("/metrics").text

        with ThreadPoolExecutor(8) as threads:
            texts = set(threads.map(ask, range(40)))
        assert len(texts) == 1


def test_metrics_show_every_part_and_name_nobody(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    admin.post(f"/admin/tenants/{unit.slug}/adapters/a-name-of-its-own/versions", files=parts(files))
    text = fresh_metrics(admin)
    samples = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert {
        "tenora_http_requests_total",
        "tenora_engine_requests_running",
        "tenora_engine_restarts_total",
        "tenora_engine_hangs_total",
        "tenora_cache_hits_total",
        "process_resident_memory_bytes",
    } <= samples
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert unit.slug not in text
    assert "a-name-of-its-own" not in text


def test_the_api_describes_itself(site: Site) -> None:
    with site.client(None) as client:
        description = client.get("/openapi.json").json()
    operations = [
        (path, method, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    assert len({operation["operationId"] for *_, operation in operations}) == len(operations)
    for path, method, operation in operations:
        assert operation["summary"], (path, method)
        named = {part[1:-1] for part in path.replace(":path", "").split("/") if part.startswith("{")}
        documented = {item["name"] for item in operation.get("parameters", []) if item["in"] == "path"}
        assert named == documented, (path, method)
