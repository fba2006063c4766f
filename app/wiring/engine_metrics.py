"""Metrics of HTTP, engine and disk cache, and the exposition of ``/metrics``.

- Labels never hold a tenant, an adapter or a path from a caller. Their cardinality stays bounded, and no caller learns
  about other tenants.
- If ``/metrics`` requires a platform key, the adapters with the most requests get rows. The others share one row.
- Refusals that need no key (401, 404, 405) create no series by route. They are counted by error code.
"""

import asyncio
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from adapters.cache import DiskCache
from app.domain.errors import ROWS
from app.domain.usage import UsageRecord
from app.engine.port import EngineEvent, Status
from app.engine.status import EngineState, EngineStatus, KernelChecks, ReplicaStatus, StatusReport
from app.services.limits.accounts import Health
from app.services.serving.adapter_traffic import Share, Traffic

_DURATION_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

#: Maximum number of adapters with a row each.
TOP = 50

#: Minimum interval in seconds between two renderings of the text.
RENDERED_EVERY_S = 1.0

#: Statuses of refusals that need no key.
_UNCOUNTED = frozenset({401, 404, 405})

#: Hidden vLLM metrics: the first lists the loaded adapters, the second counts tokens by step.
_HIDDEN = frozenset({"vllm:lora_requests_info", "vllm:iteration_tokens_total"})


class Metrics:
    """Metrics of this process in a separate registry: HTTP requests, engine and disk cache.

    Args:
        traffic: recent requests by adapter; None hides the rows of adapters.
    """

    def __init__(self, engine: Status, cache: DiskCache, traffic: Traffic | None = None) -> None:
        self.registry = CollectorRegistry()
        self._engine, self._cache, self._traffic = engine, cache, traffic
        self._limits: Callable[[], Health] | None = None
        self._requests = Counter(
            "tenora_http_requests",
            "Answered HTTP requests; status 499: the client disconnected first",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._duration = self._seconds(
            "tenora_http_request_duration_seconds",
            "Time from a request's headers to the last byte of its answer, streams included",
            "method",
            "route",
        )
        self._errors = Counter(
            "tenora_errors",
            "Requests that ended with an error, also in the middle of a stream, by error code",
            ("code",),
            registry=self.registry,
        )
        for row in ROWS.values():
            self._errors.labels(row.code)  # start each series at 0, so that rates have a first sample
        self._first_token = self._seconds(
            "tenora_time_to_first_token_seconds",
            "Time from a request's arrival in the queue to its first token; cold: its adapter had no slot",
            "adapter",
        )
        self._load = self._seconds(
            "tenora_load_seconds",
            "Time to load an adapter: fetch from the store, stage in host memory, wait for a slot, copy into it",
            "phase",
        )
        self._admission = self._seconds(
            "tenora_engine_admission_wait_seconds",
            "Time from a request's arrival in the queue to its entry into the engine",
        )
        # Cache label look-ups, which cost more than counting. The caches have as many entries as there are series.
        self._answered, self._first_tokens = functools.cache(self._series), functools.cache(self._first_token.labels)
        self._sources: list[Callable[[], Collector]] = []
        self._rendering = asyncio.Lock()
        self._rendered, self._rendered_at = b"", -math.inf
        engine.subscribe(self._on_event)
        engine.watch_waits(self.admitted)

    def add(self, source: Callable[[], Collector]) -> None:
        """Add a collector. ``source`` runs on the event loop; the collector that it returns runs in a thread."""
        self._sources.append(source)

    def observe(self, method: str, route: str, status: int, duration_s: float, code: str | None = None) -> None:
        """Count one answered request; ``route`` is a template, never a path, and ``code`` a code of Tenora's errors."""
        if status not in _UNCOUNTED:
            requests, durations = self._answered(method, route, status)
            requests.inc()
            durations.observe(duration_s)
        if code:
            self._errors.labels(code).inc()

    def used(self, record: UsageRecord) -> None:
        """Record the time to first token of one request."""
        if record.ttft_s is not None:
            self._first_tokens("warm" if record.load_s is None else "cold").observe(record.ttft_s)

    def admitted(self, wait_s: float) -> None:
        """Record the admission wait of one request in seconds."""
        self._admission.observe(wait_s)

    def watch_limits(self, health: Callable[[], Health]) -> None:
        """Export the health of the limit accounts."""
        self._limits = health

    async def exposition(self) -> bytes:
        """Return Prometheus text, up to a second old: these metrics, then those of the process and of vLLM."""
        async with self._rendering:
            if time.monotonic() - self._rendered_at >= RENDERED_EVERY_S:
                self._rendered = await self.render()
                self._rendered_at = time.monotonic()
        return self._rendered

    async def render(self) -> bytes:
        """Render the current text: take snapshots on the event loop, format them in a thread."""
        cache = self._cache
        now = _Now(
            self._engine.report(),
            (cache.hits, cache.misses, cache.evictions),
            tuple(self._traffic.most(TOP)) if self._traffic else (),
            len(asyncio.all_tasks()),
            self._limits() if self._limits else None,
        )
        parts = (self.registry, _Parts(now), *(source() for source in self._sources), _Shared())
        return await asyncio.to_thread(lambda: b"".join(map(generate_latest, parts)))

    def _series(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        return self._requests.labels(method, route, str(status)), self._duration.labels(method, route)

    def _seconds(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=_DURATION_BUCKETS_S, registry=self.registry)

    def _on_event(self, event: EngineEvent) -> None:
        if event.phases:
            for phase, seconds in asdict(event.phases).items():
                self._load.labels(phase.removesuffix("_s")).observe(seconds)


@dataclass(frozen=True, slots=True)
class _Now:
    """Snapshot of counters that other parts maintain; ``cache`` is (hits, misses, evictions)."""

    report: StatusReport
    cache: tuple[int, int, int]
    shares: tuple[Share, ...]
    tasks: int
    limits: Health | None


class _Parts(Collector):
    def __init__(self, now: _Now) -> None:
        self._now = now

    def collect(self) -> Iterable[Metric]:
        engine, (hits, misses, evictions) = self._now.report.status, self._now.cache
        yield _gauge("tenora_engine_requests_running", "Requests in the engine", engine.running)
        yield _gauge("tenora_engine_requests_waiting", "Requests that wait to enter the engine", engine.waiting)
        yield _gauge("tenora_engine_adapters_resident", "Adapters in the engine's memory", engine.slots_used)
        ready = engine.state in {EngineState.READY, EngineState.ASLEEP}
        yield _gauge("tenora_engine_up", "1 if the engine runs, or starts with the next request; else 0", ready)
        yield CounterMetricFamily("tenora_engine_restarts", "Restarts of a dead engine", engine.restarts)
        yield CounterMetricFamily("tenora_engine_hangs", "Engines killed because they did not answer", engine.hangs)
        yield from _kernels(engine.kernels)
        yield CounterMetricFamily("tenora_cache_hits", "Adapters found in this node's disk cache", hits)
        yield CounterMetricFamily("tenora_cache_misses", "Adapters fetched from the store", misses)
        yield CounterMetricFamily("tenora_cache_evictions", "Adapters evicted from this node's disk cache", evictions)
        yield _gauge("tenora_process_tasks", "Tasks in this process's event loop", self._now.tasks)
        yield from _places(self._now.report)
        yield from _tiers(engine)
        if self._now.report.replicas:
            yield from _replicas(self._now.report.replicas)
        if limits := self._now.limits:
            yield _gauge("tenora_limits_available", "1 if limits can be counted, else 0", limits.available)
            text = "Requests admitted while limits could not be counted"
            yield CounterMetricFamily("tenora_limits_uncounted", text, limits.uncounted)
        if self._now.shares:
            yield from _adapters(self._now.report, self._now.shares)


class _Shared(Collector):
    """The default registry, used by the client library and vLLM, without metrics that name adapters."""

    def collect(self) -> Iterable[Metric]:
        return (metric for metric in REGISTRY.collect() if metric.name not in _HIDDEN)


def _kernels(checks: KernelChecks) -> Iterable[Metric]:
    text = "Duration of the last passed check of the LoRA kernels"
    yield _gauge("tenora_engine_kernel_check_seconds", text, checks.seconds or 0.0)
    text = "Failed checks of the LoRA kernels"
    yield CounterMetricFamily("tenora_engine_kernel_check_failures", text, checks.failures)


def _places(report: StatusReport) -> Iterable[Metric]:
    engine = report.status
    yield _gauge("tenora_engine_slots", "LoRA slots", engine.slots)
    yield _gauge("tenora_engine_slots_used", "LoRA slots that hold an adapter", engine.slots_used)
    yield _gauge("tenora_engine_slots_pinned", "LoRA slots of pinned adapters", len(engine.pinned))
    yield _gauge("tenora_engine_window", "Maximum number of sequences in the engine", engine.window)
    yield _gauge("tenora_engine_window_used", "Requests that the queue admitted to the engine", engine.running)
    oldest = max((version.oldest_wait_s for version in report.versions), default=0.0)
    yield _gauge("tenora_queue_oldest_wait_seconds", "Longest current wait of a request for an adapter", oldest)


def _tiers(engine: EngineStatus) -> Iterable[Metric]:
    """Yield counters by tier (node's disk, host memory, slots), and byte gauges of disk and host memory."""
    counts = {
        "hits": "Adapters found in a tier",
        "misses": "Adapters not found in a tier",
        "evictions": "Adapters evicted from a tier",
        "failures": "Failed loads of adapters into a tier",
    }
    for name, text in counts.items():
        family = CounterMetricFamily(f"tenora_tier_{name}", text, labels=("tier",))
        for tier in engine.tiers:
            family.add_metric((tier.tier,), getattr(tier, name))
        yield family
    used = {"disk": engine.disk_used_bytes, "host": engine.host_used_bytes}
    yield _gauges("tenora_tier_used_bytes", "Size of the adapters in a tier", "tier", used)
    limits = {"disk": engine.disk_bytes, "host": engine.host_bytes}
    yield _gauges("tenora_tier_limit_bytes", "Maximum size of a tier", "tier", limits)


def _replicas(replicas: tuple[ReplicaStatus, ...]) -> Iterable[Metric]:
    """Yield metrics of the engine replicas of now, by node. A replica that has left has none."""
    gauges: dict[str, tuple[str, Callable[[ReplicaStatus], float]]] = {
        "up": ("1 if the replica's engine runs, else 0", lambda one: one.state is EngineState.READY),
        "slots": ("LoRA slots of the replica", lambda one: one.slots),
        "slots_used": ("LoRA slots of the replica that hold an adapter", lambda one: one.slots_used),
        "requests_running": ("Requests of all servers in the replica's engine", lambda one: one.running),
        "requests_waiting": ("Requests of all servers in the replica's queue", lambda one: one.waiting),
    }
    for name, (text, value) in gauges.items():
        yield _gauges(f"tenora_replica_{name}", text, "node", {one.node: value(one) for one in replicas})
    counters: dict[str, tuple[str, Callable[[ReplicaStatus], float]]] = {
        "loads": ("Adapters copied into a slot of the replica since its engine's start", lambda one: one.loads),
        "requests": ("Requests that this server sent to the replica", lambda one: one.requests),
        "retries": ("Requests of these that another replica had lost before", lambda one: one.retries),
        "lost": ("Requests of this server that the replica lost", lambda one: one.lost),
    }
    for name, (text, value) in counters.items():
        family = CounterMetricFamily(f"tenora_replica_{name}", text, labels=("node",))
        for one in replicas:
            family.add_metric((one.node,), value(one))
        yield family


def _adapters(report: StatusReport, shares: tuple[Share, ...]) -> Iterable[Metric]:
    """Yield gauges of the adapters with the most requests, and of ``other``, the sum of the rest."""
    names = {share.version_id: share.name for share in shares}
    rest = names[0]
    running, waiting = dict.fromkeys(names.values(), 0), dict.fromkeys(names.values(), 0)
    for version in report.versions:
        name = names.get(version.version_id, rest)
        running[name] += version.running
        waiting[name] += version.waiting
    requests = {share.name: share.requests for share in shares}
    yield _gauges("tenora_adapter_requests_recent", "Requests in the last five minutes", "adapter", requests)
    yield _gauges("tenora_adapter_requests_running", "Requests in the engine", "adapter", running)
    yield _gauges("tenora_adapter_requests_waiting", "Requests that wait to enter the engine", "adapter", waiting)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value, number in values.items():
        family.add_metric((value,), number)
    return family
