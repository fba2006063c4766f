"""Engine metrics, sample by sample."""

from dataclasses import replace
from pathlib import Path

import pytest

from adapters.cache import DiskCache
from adapters.identity import VersionKey
from adapters.stores.local import LocalStore
from app.domain.adapters import ResolvedVersion
from app.domain.errors import ROWS
from app.domain.load_phases import LoadPhases
from app.domain.usage import UsageRecord
from app.engine.port import EngineEvent
from app.engine.status import EngineState, ReplicaStatus
from app.services.limits.accounts import Health
from app.services.serving.adapter_traffic import Traffic
from app.wiring.engine_metrics import TOP, Metrics
from tests.support.overviews import overview, queue, residency
from tests.support.samples import AT, Samples, samples
from tests.support.serving import NoEngine


@pytest.fixture
def engine() -> NoEngine:
    return NoEngine()


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", LocalStore(tmp_path / "blobs"), 2**20)


def one(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def used(*, ttft_s: float | None, load_s: float | None) -> UsageRecord:
    return UsageRecord("f" * 32, AT, 7, "key", 1, 5, 4, 2, ttft_s, 1.0, load_s, "stop", 200)


def asked(traffic: Traffic, version_id: int, times: int = 1) -> None:
    key = VersionKey(version_id, "c" * 64, "d" * 64, 1, 1)
    for _ in range(times):
        traffic.requested(ResolvedVersion(key, "prices", version_id, "pricing", None, None, None, {}))


async def test_places_and_tiers(engine: NoEngine, cache: DiskCache) -> None:
    engine.shown = overview(
        residency(1, "slot", running=2),
        residency(2, "host", waiting=1),
        tenants=(queue("pricing", running=2, waiting=1),),
        pinned=frozenset({1}),
    )
    found = await samples(Metrics(engine, cache))
    assert one(found, "tenora_engine_slots") == 4
    assert one(found, "tenora_engine_slots_used") == one(found, "tenora_engine_slots_pinned") == 1
    assert one(found, "tenora_engine_window") == 64
    assert one(found, "tenora_engine_window_used") == 2
    assert {tier: one(found, "tenora_tier_hits_total", tier=tier) for tier in ("disk", "host", "slot")} == {
        "disk": 3,
        "host": 0,
        "slot": 9,
    }
    assert one(found, "tenora_tier_misses_total", tier="slot") == 4
    assert one(found, "tenora_tier_evictions_total", tier="disk") == 2
    assert one(found, "tenora_tier_failures_total", tier="disk") == 1
    assert one(found, "tenora_tier_used_bytes", tier="host") == 2000
    assert one(found, "tenora_tier_limit_bytes", tier="disk") == 2**34
    assert one(found, "tenora_cache_hits_total") == 0


async def test_replicas_have_metrics_by_node_until_they_leave(engine: NoEngine, cache: DiskCache) -> None:
    assert not any(name.startswith("tenora_replica") for name, _ in await samples(Metrics(engine, cache)))
    two = [
        ReplicaStatus("a", EngineState.READY, 4, 3, 2, 1, loads=9, requests=8, retries=7, lost=6),
        ReplicaStatus("b", EngineState.STARTING, 0, 0, 0, 0, loads=0),
    ]
    engine.shown = replace(overview(), replicas=tuple(two))
    found = await samples(Metrics(engine, cache))
    values = {"up": 1, "slots": 4, "slots_used": 3, "requests_running": 2, "requests_waiting": 1}
    values |= {"loads_total": 9, "requests_total": 8, "retries_total": 7, "lost_total": 6}
    assert {name: one(found, f"tenora_replica_{name}", node="a") for name in values} == values
    assert one(found, "tenora_replica_up", node="b") == 0
    engine.shown = replace(overview(), replicas=tuple(two[1:]))
    assert not any(("node", "a") in labels for _, labels in await samples(Metrics(engine, cache)))


async def test_whether_limits_are_counted(engine: NoEngine, cache: DiskCache) -> None:
    metrics = Metrics(engine, cache)
    assert not any(name.startswith("tenora_limits") for name, _ in await samples(metrics))
    metrics.watch_limits(lambda: Health(available=False, uncounted=3))
    found = await samples(metrics)
    assert (one(found, "tenora_limits_available"), one(found, "tenora_limits_uncounted_total")) == (0, 3)


async def test_loads_by_phase_and_waits_for_admission(engine: NoEngine, cache: DiskCache) -> None:
    metrics = Metrics(engine, cache)
    engine.tell(EngineEvent("load", 1, 1.0, LoadPhases(0.5, 0.25, 0.125, 0.0625)))
    engine.tell(EngineEvent("load", 1, 1.0, LoadPhases(0.5, 0.25, 0.125, 0.0625)))
    engine.tell(EngineEvent("evict", 1))
    engine.tell(EngineEvent("load", 2, 1.0))
    for wait_s in (0.002, 7.0):
        metrics.admitted(wait_s)
    found = await samples(metrics)
    sums = {phase: one(found, "tenora_load_seconds_sum", phase=phase) for phase in ("fetch", "stage", "wait", "copy")}
    assert sums == {"fetch": 1.0, "stage": 0.5, "wait": 0.25, "copy": 0.125}
    assert one(found, "tenora_load_seconds_count", phase="fetch") == 2
    assert one(found, "tenora_engine_admission_wait_seconds_count") == 2
    assert one(found, "tenora_engine_admission_wait_seconds_bucket", le="5.0") == 1


async def test_adapters_have_no_rows_unless_their_traffic_is_given(engine: NoEngine, cache: DiskCache) -> None:
    engine.shown = overview(residency(1, running=1))
    assert not any("adapter" in dict(labels) for _, labels in await samples(Metrics(engine, cache)))


async def test_popular_adapters_have_rows_and_the_others_one(engine: NoEngine, cache: DiskCache) -> None:
    traffic = Traffic()
    for version_id in range(1, TOP + 11):
        asked(traffic, version_id, times=2 if version_id <= TOP else 1)
    engine.shown = overview(
        residency(1, running=3, waiting=2), residency(TOP + 1, running=4), residency(TOP + 2, waiting=5)
    )
    found = await samples(Metrics(engine, cache, traffic))
    rows = {dict(labels)["adapter"] for _, labels in found if "adapter" in dict(labels)}
    assert rows == {f"pricing/prices@{number}" for number in range(1, TOP + 1)} | {"other"}
    assert one(found, "tenora_adapter_requests_recent", adapter="pricing/prices@1") == 2
    assert one(found, "tenora_adapter_requests_recent", adapter="other") == 10
    assert one(found, "tenora_adapter_requests_running", adapter="pricing/prices@1") == 3
    assert one(found, "tenora_adapter_requests_waiting", adapter="pricing/prices@1") == 2
    assert one(found, "tenora_adapter_requests_running", adapter="other") == 4
    assert one(found, "tenora_adapter_requests_waiting", adapter="other") == 5


async def test_every_series_is_there_once_and_their_number_is_bounded(engine: NoEngine, cache: DiskCache) -> None:
    traffic = Traffic()
    for version_id in range(1, 1000):
        asked(traffic, version_id)
    engine.shown = overview(*(residency(version_id) for version_id in range(1, 1000)))
    metrics = Metrics(engine, cache, traffic)
    lines = [line for line in (await metrics.render()).decode().splitlines() if line.startswith("tenora_")]
    series = [line.rpartition(" ")[0] for line in lines]
    assert len(series) == len(set(series))
    assert sum("adapter=" in name for name in series) == 3 * (TOP + 1)


async def test_errors_count_from_zero(engine: NoEngine, cache: DiskCache) -> None:
    metrics = Metrics(engine, cache)
    metrics.observe("POST", "/v1/completions", 429, 0.5, "queue_full")
    metrics.observe("POST", "/v1/completions", 200, 0.5)
    found = await samples(metrics)
    codes = {dict(labels)["code"]: value for (name, labels), value in found.items() if name == "tenora_errors_total"}
    assert codes == dict.fromkeys((row.code for row in ROWS.values()), 0) | {"queue_full": 1}


async def test_first_tokens_warm_and_cold(engine: NoEngine, cache: DiskCache) -> None:
    metrics = Metrics(engine, cache)
    for load_s, ttft_s in ((None, 0.25), (2.0, 4.0), (None, None)):
        metrics.used(used(ttft_s=ttft_s, load_s=load_s))
    found = await samples(metrics)
    name = "tenora_time_to_first_token_seconds_sum"
    assert [one(found, name, adapter="warm"), one(found, name, adapter="cold")] == [0.25, 4.0]
    assert one(found, "tenora_time_to_first_token_seconds_count", adapter="warm") == 1


@pytest.mark.parametrize(
    ("state", "up"), [(EngineState.READY, 1), (EngineState.ASLEEP, 1), (EngineState.RESTARTING, 0)]
)
async def test_whether_the_engine_is_up(engine: NoEngine, cache: DiskCache, state: EngineState, up: int) -> None:
    engine.shown = overview(residency(1, oldest_wait_s=2.5), residency(2, oldest_wait_s=1.5))
    engine.state = state
    found = await samples(Metrics(engine, cache))
    assert one(found, "tenora_engine_up") == up
    assert one(found, "tenora_queue_oldest_wait_seconds") == 2.5
