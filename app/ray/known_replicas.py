"""Replicas that a gateway has heard of lately, and the sum of their state."""

from collections.abc import Collection, KeysView
from dataclasses import dataclass

from app.engine.status import StatusReport
from app.ray.snapshot import NO_REPORT, Snapshot, merged

#: Age in seconds at which a replica's state is dropped.
STALE_S = 5.0


@dataclass(slots=True)
class _Known:
    """Last snapshot of a replica."""

    snapshot: Snapshot
    heard_at: float


class KnownReplicas:
    """Last snapshots of the replicas.

    Attributes:
        report: the sum of their reports.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self.report: StatusReport = NO_REPORT

    @property
    def nodes(self) -> KeysView[str]:
        """Ids of their HOMEs. The view follows changes."""
        return self._known.keys()

    @property
    def snapshots(self) -> list[Snapshot]:
        """Last snapshots, by node."""
        return [known.snapshot for _, known in sorted(self._known.items())]

    @property
    def numbers(self) -> dict[str, int]:
        """Number of events and waits that is known of each process."""
        return {known.snapshot.process: known.snapshot.number for known in self._known.values()}

    def note(self, snapshot: Snapshot, now: float) -> None:
        """Keep a snapshot."""
        self._known[snapshot.node] = _Known(snapshot, now)

    def keep(self, nodes: Collection[str], now: float) -> None:
        """Keep only these replicas, and of them those that were heard lately. Update the report."""
        for node in [*self._known]:
            if node not in nodes or now - self._known[node].heard_at >= STALE_S:
                del self._known[node]
        self.report = merged([known.snapshot.report for known in self._known.values()])
