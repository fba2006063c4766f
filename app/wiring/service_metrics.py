"""Metrics of the services around the engine, for ``/metrics``."""

import shutil
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from app.services.batches.counts import Counts
from app.services.usage.ledger import Ledger
from app.settings import QueueSettings
from app.support.periodic import Periodic
from app.wiring.engine_node import EngineNode
from app.wiring.gateway import Gateway


class ServiceMetrics:
    """Collector factory. Label values are a fixed set: names of limits, parts and periodic jobs."""

    def __init__(self, gateway: Gateway, node: EngineNode, jobs: tuple[Periodic, ...]) -> None:
        self._gateway, self._node, self._jobs = gateway, node, jobs

    def now(self) -> Collector:
        """Take a snapshot of the metrics. Call it on the event loop, which owns the values."""
        gateway, node = self._gateway, self._node
        return _Now(
            refused=dict(gateway.limits.refused),
            ready={part: problem is None for part, problem in gateway.readiness.last.items()},
            succeeded={job.name: job.succeeded_at for job in self._jobs},
            database_failures={cause.value: count for cause, count in gateway.database.troubles.counts.items()},
            lost_bytes=node.lost_bytes.counts(),
            files={purpose.value: use.files for purpose, use in gateway.file_sweeper.usage.items()},
            file_bytes={purpose.value: use.bytes for purpose, use in gateway.file_sweeper.usage.items()},
            lost_files=gateway.contents.lost(),
            copies_bytes=gateway.contents.copies.bytes,
            clock_offset_s=node.nodes.clock_offset_s or 0.0,
            clock_spread_s=node.nodes.clock_spread_s,
            audit_intact=gateway.audit.intact,
            queue=gateway.settings.queue,
            home=gateway.settings.home,
            ledger=gateway.ledger,
            batches=copy(gateway.batch_runner.counts),
            lines_running=gateway.batch_runner.running,
        )


@dataclass(frozen=True, slots=True)
class _Now(Collector):
    refused: Mapping[str, int]
    ready: Mapping[str, bool]
    succeeded: Mapping[str, float]
    database_failures: Mapping[str, int]
    lost_bytes: Mapping[str, int]
    files: Mapping[str, int]
    file_bytes: Mapping[str, int]
    lost_files: Mapping[str, int]
    copies_bytes: int
    clock_offset_s: float
    clock_spread_s: float
    audit_intact: bool
    queue: QueueSettings
    home: Path
    ledger: Ledger
    batches: Counts
    lines_running: int

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics. Blocks while it queries the disk's usage."""
        yield _counted("tenora_limit_refusals", "Requests rejected by a limit", "limit", self.refused)
        yield _counted("tenora_database_failures", "Failed database statements", "cause", self.database_failures)
        yield _labelled("tenora_ready", "1 if a part passed its last readiness check, else 0", "part", self.ready)
        yield _labelled(
            "tenora_work_succeeded_timestamp_seconds",
            "Unix time of a periodic job's last success",
            "work",
            self.succeeded,
        )
        yield _labelled(
            "tenora_versions_without_bytes",
            "Versions whose bytes were missing or damaged when this server fetched them from the store",
            "bytes",
            self.lost_bytes,
        )
        yield _labelled("tenora_files", "Files of all tenants in the store", "purpose", self.files)
        yield _labelled("tenora_file_bytes", "Size of these files before compression", "purpose", self.file_bytes)
        yield _labelled(
            "tenora_files_without_bytes",
            "Files whose bytes were missing or damaged when this server fetched them from the store",
            "bytes",
            self.lost_files,
        )
        batches = {state.value: number for state, number in self.batches.open.items()}
        yield _labelled("tenora_batches_open", "Batches that are not finished", "state", batches)
        yield _counted("tenora_batch_lines", "Lines of batches that this server ran", "outcome", self.batches.lines)
        for name, (text, value) in self._gauges().items():
            yield GaugeMetricFamily(name, text, value)

    def _gauges(self) -> dict[str, tuple[str, float]]:
        """Return description and value of the gauges without labels. Blocks while it queries the disk's usage."""
        disk = shutil.disk_usage(self.home)
        return {
            "tenora_audit_intact": ("0 if a seal is missing; then run `tenora server audit verify`", self.audit_intact),
            "tenora_usage_waiting_bytes": ("Usage records not in the database yet", self.ledger.waiting_bytes()),
            "tenora_queue_limit_requests": ("Maximum number of waiting requests", self.queue.requests),
            "tenora_queue_limit_seconds": ("Maximum estimated wait of an admitted request", self.queue.seconds),
            "tenora_batch_lines_running": ("Lines of batches in flight on this server", self.lines_running),
            "tenora_batch_lines_waiting": ("Lines of unfinished batches without a result", self.batches.waiting),
            "tenora_batch_lines_per_second": ("Lines that this server ran per second lately", self.batches.per_second),
            "tenora_batch_oldest_seconds": ("Age of the oldest unfinished batch", self.batches.oldest_s),
            "tenora_clock_offset_seconds": ("This server's clock minus the database's clock", self.clock_offset_s),
            "tenora_clock_spread_seconds": (
                "Largest difference between the clocks of the servers on this registry",
                self.clock_spread_s,
            ),
            "tenora_file_copies_bytes": ("Size of the uncompressed copies of files in HOME", self.copies_bytes),
            "tenora_home_size_bytes": ("Size of the disk with HOME", disk.total),
            "tenora_home_free_bytes": ("Free space on the disk with HOME", disk.free),
        }


def _counted(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, number in values.items():
        family.add_metric((value,), number)
    return family


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value, number in values.items():
        family.add_metric((value,), number)
    return family
