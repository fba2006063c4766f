"""Residency of adapters in vLLM's format, for routers such as llm-d and the Gateway API Inference Extension.

They read ``vllm:lora_requests_info``: its labels name the adapters that are loaded and those that wait, and its value
is the time of the reading, so that the newest of several series counts. The protocol:
https://github.com/kubernetes-sigs/gateway-api-inference-extension/tree/main/docs/proposals/003-model-server-protocol

Versions are named by their ids, which say nothing of tenants and adapters.
"""

import heapq
import time
from collections.abc import Callable, Iterable

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from app.engine.port import Status
from app.engine.status import StatusReport, VersionResidency

#: Versions with a series each; those with requests first.
MAX_VERSIONS = 1_000


class ResidencyMetrics:
    """Collector factory."""

    def __init__(self, engine: Status, *, clock: Callable[[], float] = time.time) -> None:
        self._engine, self._clock = engine, clock

    def now(self) -> Collector:
        """Take a snapshot. Call it on the event loop."""
        return _Now(self._engine.report(), self._clock())


class _Now(Collector):
    def __init__(self, report: StatusReport, at: float) -> None:
        self._report, self._at = report, at

    def collect(self) -> Iterable[Metric]:
        versions = self._report.versions
        info = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Versions in slots, versions with waiting requests, and the number of slots; the value is the time",
            labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        )
        resident = _names(version.version_id for version in versions if version.tier == "slot")
        waiting = _names(version.version_id for version in versions if version.waiting)
        info.add_metric((str(self._report.status.slots), resident, waiting), self._at)
        yield info
        tiers = GaugeMetricFamily(
            "tenora_version_resident", "1 for each version in memory, by its fastest tier", labels=("version", "tier")
        )
        held = (version for version in versions if version.tier in ("slot", "host"))
        for version in heapq.nsmallest(MAX_VERSIONS, held, key=_interest):
            tiers.add_metric((str(version.version_id), version.tier), 1)
        yield tiers


def _names(version_ids: Iterable[int]) -> str:
    return ",".join(str(version_id) for version_id in sorted(version_ids))


def _interest(version: VersionResidency) -> tuple[bool, int, int]:
    return (version.tier != "slot", -version.waiting - version.running, version.version_id)
