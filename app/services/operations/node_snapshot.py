"""Snapshot of this node's engine for its row, of bounded size."""

import heapq

from app.domain.node_snapshots import NodeReport, NodeRole, NodeSnapshot, PlacedVersion
from app.engine.port import Status
from app.engine.status import EngineState, StatusReport, VersionResidency

#: Versions in a snapshot. With these it is smaller than 64 KiB: each node writes one with each heartbeat.
MAX_VERSIONS = 500


class NodeReporter:
    """Reports of this node, each with a snapshot of its engine.

    Args:
        role: a gateway reports no engine: its replicas are nodes too.
    """

    def __init__(self, engine: Status, role: NodeRole, base_digest: str) -> None:
        self._engine, self._role, self._base_digest = engine, role, base_digest
        self._was_ready = False

    def report(self) -> NodeReport:
        """Return the state of now. A restarting engine keeps its slots, so that no pin moves."""
        if self._role is NodeRole.GATEWAY:
            return NodeReport(self._role, self._base_digest)
        report = self._engine.report()
        self._was_ready |= report.status.state is EngineState.READY
        slots = report.status.slots if self._was_ready else None
        return NodeReport(self._role, self._base_digest, slots, snapshot_of(report))


def snapshot_of(report: StatusReport) -> NodeSnapshot:
    """Shorten an engine's report. It names versions by id, and no tenants."""
    status = report.status
    placed = [version for version in report.versions if version.tier in ("slot", "loading")]
    shown = heapq.nsmallest(MAX_VERSIONS, placed, key=_interest)
    return NodeSnapshot(
        state=status.state.value,
        slots=status.slots,
        slots_used=status.slots_used,
        running=status.running,
        waiting=status.waiting,
        restarts=status.restarts,
        hangs=status.hangs,
        loads=status.loads,
        pinned=len(status.pinned),
        host_bytes=status.host_bytes,
        host_used_bytes=status.host_used_bytes,
        disk_bytes=status.disk_bytes,
        disk_used_bytes=status.disk_used_bytes,
        tokens_per_s=status.tokens_per_s,
        queued_tokens=status.queued_tokens,
        device=status.device,
        versions=tuple(
            PlacedVersion(
                version.version_id,
                "slot" if version.tier == "slot" else "loading",
                version.running,
                version.waiting,
            )
            for version in shown
        ),
        more_versions=len(placed) - len(shown),
    )


def _interest(version: VersionResidency) -> tuple[int, int, int]:
    return (-version.waiting, -version.running, version.version_id)
