"""Engine view over HTTP, the deadline header, and metrics that name adapters to platform keys only."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from app.domain.load_phases import LoadPhases
from app.engine.port import EngineEvent
from app.engine.status import EngineState, ReplicaStatus, StatusReport
from tests.support.fresh_metrics import fresh_metrics
from tests.support.overviews import overview, queue, residency
from tests.support.server import until
from tests.support.serving import EMPTY, PeftFiles
from tests.support.site import Site, Unit, make_unit, parts, running_site


@pytest.fixture
def published(site: Site, unit: Unit, files: PeftFiles) -> Iterator[int]:
    """Id of the unit's ``prices@1``, which holds a slot and has two requests."""
    with site.client(unit.key) as client:
        assert client.post("/v1/adapters/prices/versions", files=parts(files)).status_code == 201
    version_id = site.engine.smoked[-1]
    site.engine.shown = _busy(version_id, unit)
    yield version_id
    site.engine.shown = EMPTY


def _busy(version_id: int, unit: Unit) -> StatusReport:
    return overview(
        residency(version_id, running=1, waiting=1, oldest_wait_s=0.5),
        residency(10_000, "disk"),
        tenants=(queue(unit.slug, running=1, waiting=1, weight=2.0), queue("", running=1)),
        pinned=frozenset({version_id}),
    )


def test_the_platform_sees_everything(site: Site, admin: httpx.Client, unit: Unit, published: int) -> None:
    site.engine.tell(EngineEvent("load", published, 1.0, LoadPhases(0.5, 0.25, 0.125, 0.125)))
    seen = admin.get("/admin/engine").json()
    assert seen["node"]
    assert (seen["state"], seen["restarts"], seen["hangs"]) == ("ready", 0, 0)
    assert seen["slots"] == {"total": 4, "used": 1, "pinned": 1}
    assert seen["queue"] == {"window": 64, "running": 2, "waiting": 1}
    assert [(tier["tier"], tier["hit_rate"], tier["used_bytes"]) for tier in seen["tiers"]] == [
        ("disk", 0.75, 3000),
        ("host", None, 2000),
        ("slot", 9 / 13, None),
    ]
    assert seen["load_seconds"]["loads"] >= 1
    assert set(seen["load_seconds"]["p50"]) == {"fetch", "stage", "wait", "copy", "total"}
    assert seen["tenants"]["total"] == 2
    assert seen["tenants"]["data"][0] == {
        "tenant": unit.slug, "weight": 2.0, "running": 1, "waiting": 1, "counter": 100.0,
    }  # fmt: skip
    assert seen["tenants"]["data"][1]["tenant"] is None
    assert seen["versions"]["data"][0] == {
        "id": published, "name": f"{unit.slug}/prices@1", "tier": "slot", "pinned": True, "draining": False,
        "leases": 2, "running": 1, "waiting": 1, "oldest_wait_s": 0.5, "bytes": 1000 * published,
    }  # fmt: skip
    assert seen["versions"]["total"] == 2
    [node] = seen["nodes"]
    assert (node["name"], node["alive"], node["clock_ahead_s"], node["clock_apart"]) == (
        seen["node"],
        True,
        None,
        False,
    )


def test_nodes_show_their_engines(site: Site, admin: httpx.Client, unit: Unit, published: int) -> None:
    name = f"{unit.slug}/prices@1"

    def reported() -> bool:
        [node] = admin.get("/admin/engine").json()["nodes"]
        return node["engine"] is not None and name in [version["name"] for version in node["engine"]["versions"]]

    until(reported, 60)
    [node] = admin.get("/admin/engine").json()["nodes"]
    engine = node["engine"]
    assert node["role"] == "server"
    assert engine["slots"] == {"total": 4, "used": 1, "pinned": 1}
    assert engine["versions"] == [{"name": name, "tier": "slot", "running": 1, "waiting": 1}]
    with site.client(unit.key) as own:
        assert own.get("/admin/engine").status_code == 403
        assert set(own.get("/v1/engine").json()) == {"running", "waiting", "total", "data"}


def test_a_fleet_shows_its_replicas_and_routing(site: Site, admin: httpx.Client, unit: Unit, published: int) -> None:
    assert admin.get("/admin/engine").json()["replicas"] == []
    replica = ReplicaStatus("f" * 32, EngineState.READY, 4, 3, 2, 1, loads=9, requests=8, retries=7, lost=6)
    site.engine.shown = replace(site.engine.shown, replicas=(replica,))
    assert admin.get("/admin/engine").json()["replicas"] == [
        {"node": "f" * 32, "state": "ready", "slots": 4, "slots_used": 3, "running": 2, "waiting": 1,
         "loads": 9, "requests": 8, "retries": 7, "lost": 6}
    ]  # fmt: skip
    with site.client(unit.key) as own:
        assert "f" * 32 not in own.get("/v1/engine").text


def test_lists_are_cut_and_say_so(admin: httpx.Client, published: int) -> None:
    seen = admin.get("/admin/engine", params={"limit": 1}).json()
    for name in ("tenants", "versions"):
        assert (seen[name]["total"], len(seen[name]["data"])) == (2, 1)
    for limit in ("0", "1001", "x"):
        assert admin.get("/admin/engine", params={"limit": limit}).json()["error"]["param"] == "limit"


def test_an_engine_that_was_never_asked(admin: httpx.Client, site: Site) -> None:
    site.engine.shown = EMPTY
    seen = admin.get("/admin/engine").json()
    assert (seen["state"], seen["tiers"], seen["versions"]) == ("stopped", [], {"total": 0, "data": []})
    assert seen["limits"] == {"available": True, "uncounted": 0}
    assert "tenora_limits_available 1.0" in fresh_metrics(admin)


def test_a_tenant_sees_its_own(site: Site, unit: Unit, published: int) -> None:
    with site.client(unit.key) as client:
        assert client.get("/v1/engine").json() == {
            "running": 1,
            "waiting": 1,
            "total": 1,
            "data": [{"name": "prices@1", "tier": "slot", "running": 1, "waiting": 1}],
        }


def test_scopes(site: Site, admin: httpx.Client, unit: Unit) -> None:
    key = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "app"}).json()["key"]
    with site.client(key) as application, site.client(unit.key) as tenant, site.client(None) as anonymous:
        assert application.get("/v1/engine").status_code == 403
        assert tenant.get("/admin/engine").status_code == 403
        assert anonymous.get("/admin/engine").status_code == anonymous.get("/v1/engine").status_code == 401
    assert admin.get("/v1/engine").status_code == 403


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}),
        ("/generate", {"inputs": "x"}),
        ("/generate_stream", {"inputs": "x"}),
        ("/", {"inputs": "x"}),
    ],
)
def test_every_inference_route_reads_the_deadline(site: Site, unit: Unit, path: str, body: dict[str, object]) -> None:
    with site.client(unit.key) as client:
        assert client.post(path, json=body, headers={"x-request-timeout": "2.5"}).status_code == 503
        refused = client.post(path, json=body, headers={"x-request-timeout": "soon"})
    assert refused.status_code == 400
    assert "x-request-timeout is 'soon', but must be a number of seconds above 0 and up to 3600." in refused.text


def test_the_api_describes_the_deadline(site: Site) -> None:
    with site.client(None) as client:
        paths = client.get("/openapi.json").json()["paths"]
    openai = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
    for path in (*openai, "/generate", "/generate_stream", "/"):
        named = sorted(item["name"] for item in paths[path]["post"]["parameters"])
        assert named == ["x-request-timeout", "x-tenora-tenant"]
        assert "429" in paths[path]["post"]["responses"]


def test_metrics_name_adapters_to_the_platform_only(base: Path, tmp_path: Path, files: PeftFiles) -> None:
    with running_site(tmp_path / "open", base, metrics_key_required=False) as shown:
        with shown.client(shown.admin_key) as admin:
            owner = make_unit(admin)
        with shown.client(owner.key) as client:
            assert client.post("/v1/adapters/prices/versions", files=parts(files)).status_code == 201
            client.post("/v1/completions", json={"prompt": "x", "model": "prices"})
        with shown.client(None) as anyone:
            assert "adapter=" not in fresh_metrics(anyone)
    with running_site(tmp_path / "home", base) as guarded:
        with guarded.client(guarded.admin_key) as admin:
            owner = make_unit(admin)
            with guarded.client(owner.key) as client:
                assert client.post("/v1/adapters/prices/versions", files=parts(files)).status_code == 201
                for _ in range(3):
                    client.post("/v1/completions", json={"prompt": "x", "model": "prices"})
            text = fresh_metrics(admin)
        assert f'tenora_adapter_requests_recent{{adapter="{owner.slug}/prices@1"}} 3.0' in text
        with guarded.client(owner.key) as client:
            assert client.get("/metrics").status_code == 403
