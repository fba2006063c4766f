"""Everything that ``/metrics`` shows.

Labels never name a tenant, an adapter or a path that a caller made up: their number stays bounded,
and nobody learns who else is served here.
"""

from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from adapters.cache import DiskCache
from app.engine.base import Engine

_DURATION_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

#: The engine's own metric that lists the adapters it runs.
_HIDDEN = frozenset({"vllm:lora_requests_info"})


class Metrics:
    """This process's own metrics, in a registry of their own: of HTTP requests, the engine and the disk cache."""

    def __init__(self, engine: Engine, cache: DiskCache) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Parts(engine, cache))
        self._requests = Counter(
            "tenora_http_requests",
            "Answered HTTP requests; status 499: the client went away first",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._duration = Histogram(
            "tenora_http_request_duration_seconds",
            "From a request's headers to the last byte of its answer, streams included",
            ("method", "route"),
            buckets=_DURATION_BUCKETS_S,
            registry=self.registry,
        )

    def observe(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Count one answered request; ``route`` is a template, never a path."""
        self._requests.labels(method, route, str(status)).inc()
        self._duration.labels(method, route).observe(duration_s)

    def exposition(self) -> bytes:
        """Prometheus text: these metrics, then those of the process and of the engine. Blocks for milliseconds."""
        return generate_latest(self.registry) + generate_latest(_Shared())


class _Parts(Collector):
    """Numbers that the parts keep themselves, read when somebody asks."""

    def __init__(self, engine: Engine, cache: DiskCache) -> None:
        self._engine, self._cache = engine, cache

    def collect(self) -> Iterable[Metric]:
        stats, cache = self._engine.stats(), self._cache
        yield GaugeMetricFamily("tenora_engine_requests_running", "Requests in the engine", stats.running)
        yield GaugeMetricFamily("tenora_engine_requests_waiting", "Requests that wait for a LoRA slot", stats.waiting)
        yield GaugeMetricFamily("tenora_engine_adapters_resident", "Adapters in the engine's memory", stats.resident)
        yield CounterMetricFamily("tenora_engine_restarts", "Times that a dead engine was replaced", stats.restarts)
        yield CounterMetricFamily("tenora_cache_hits", "Adapters found on this node's disk", cache.hits)
        yield CounterMetricFamily("tenora_cache_misses", "Adapters fetched from the store", cache.misses)
        yield CounterMetricFamily("tenora_cache_evictions", "Adapters removed to make room", cache.evictions)


class _Shared(Collector):
    """The default registry, where the client library and vLLM put theirs, less what names adapters."""

    def collect(self) -> Iterable[Metric]:
        return (metric for metric in REGISTRY.collect() if metric.name not in _HIDDEN)
