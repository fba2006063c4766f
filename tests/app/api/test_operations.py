"""Health, metrics and the description of the API."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.api.conftest import Site, Unit, parts, running_site
from tests.app.serving import PeftFiles


@pytest.fixture(scope="module")
def guarded(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server whose metrics ask for a key, and whose engine does not work."""
    with running_site(tmp_path_factory.mktemp("guarded"), base, metrics_key_required=True) as site:
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
        # The verdict may be a second old: the server asks by itself too.
        while (ready := client.get("/health/ready")).is_success:
            time.sleep(0.05)
        assert client.get("/health/live").status_code == 200
    assert ready.status_code == 503
    assert ready.headers["retry-after"]
    assert ready.json() == {
        "status": "not_ready",
        "checks": {"engine": "the engine is starting", "database": "ok", "store": "ok"},
    }


def test_metrics_are_open_unless_told_otherwise(site: Site, guarded: Site) -> None:
    with site.client(None) as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    with guarded.client(None) as client:
        assert client.get("/metrics").status_code == 401
    with guarded.client(guarded.admin_key) as client:
        assert client.get("/metrics").status_code == 200


def test_metrics_show_every_part_and_name_nobody(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    admin.post(f"/admin/tenants/{unit.slug}/adapters/a-name-of-its-own/versions", files=parts(files))
    text = admin.get("/metrics").text
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
        if path.startswith(("/admin", "/v1")):
            schema = operation["responses"]["401"]["content"]["application/json"]["schema"]
            assert schema["$ref"].endswith("/ErrorOut"), (path, method)
