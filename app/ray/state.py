"""State of a replica for the routing rule, made from its engine's report, its disk cache and its loads."""

from collections.abc import Set as AbstractSet

from app.domain.load_phases import LoadPhases
from app.engine.port import EngineEvent
from app.engine.status import EngineState, StatusReport
from app.scheduling.replica_report import ReplicaReport

#: Smoothing factor of the moving averages of load times.
_NEWEST = 0.2


class LoadTimes:
    """Moving averages of the phases of cold loads. A phase that a load skipped does not count.

    Attributes:
        copy_s, stage_s, fetch_s: seconds, see :class:`app.scheduling.replica_report.ReplicaReport`.
    """

    def __init__(self) -> None:
        usual = ReplicaReport("none", 0)
        self.copy_s, self.stage_s, self.fetch_s = usual.copy_s, usual.stage_s, usual.fetch_s

    def note(self, event: EngineEvent) -> None:
        """Listen to the engine's events."""
        if event.phases:
            self._add(event.phases)

    def _add(self, phases: LoadPhases) -> None:
        self.copy_s = _average(self.copy_s, phases.copy_s)
        self.stage_s = _average(self.stage_s, phases.stage_s)
        self.fetch_s = _average(self.fetch_s, phases.fetch_s)


def replica_report(
    node_id: str, report: StatusReport, on_disk: AbstractSet[str] = frozenset(), times: LoadTimes | None = None
) -> ReplicaReport:
    """Return the state that a replica reports to the gateways.

    Args:
        node_id: id of its HOME.
        on_disk: content digests of the versions in its disk cache.
    """
    status, times = report.status, times or LoadTimes()
    return ReplicaReport(
        node_id,
        status.slots,
        ready=status.state is EngineState.READY,
        in_flight=status.running + status.waiting,
        queued_tokens=status.queued_tokens,
        tokens_per_s=status.tokens_per_s,
        resident=_in_tier(report, "slot"),
        staged=_in_tier(report, "host"),
        on_disk=on_disk,
        copy_s=times.copy_s,
        stage_s=times.stage_s,
        fetch_s=times.fetch_s,
    )


def _in_tier(report: StatusReport, tier: str) -> frozenset[str]:
    return frozenset(version.digest for version in report.versions if version.tier == tier and version.digest)


def _average(average: float, seconds: float) -> float:
    return average + _NEWEST * (seconds - average) if seconds > 0 else average
