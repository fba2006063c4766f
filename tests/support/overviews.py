"""Builders of engine reports for tests."""

from dataclasses import replace
from typing import Literal

from app.engine.status import EngineState, StatusReport, TenantQueue, TierStats, VersionResidency
from tests.support.serving import EMPTY

Place = Literal["slot", "host", "disk", "loading"]


def residency(
    version_id: int, tier: Place = "slot", *, running: int = 0, waiting: int = 0, oldest_wait_s: float = 0.0
) -> VersionResidency:
    return VersionResidency(
        version_id=version_id,
        tier=tier,
        leases=running + waiting,
        running=running,
        waiting=waiting,
        bytes=1000 * version_id,
        oldest_wait_s=oldest_wait_s,
        draining=False,
    )


def overview(
    *versions: VersionResidency, tenants: tuple[TenantQueue, ...] = (), pinned: frozenset[int] = frozenset()
) -> StatusReport:
    status = replace(
        EMPTY.status,
        state=EngineState.READY,
        slots_used=sum(version.tier == "slot" for version in versions),
        pinned=pinned,
        running=sum(queue.running for queue in tenants),
        waiting=sum(queue.waiting for queue in tenants),
        host_used_bytes=2000,
        disk_used_bytes=3000,
        tiers=(
            TierStats("disk", hits=3, misses=1, evictions=2, failures=1),
            TierStats("host", hits=0, misses=0, evictions=0, failures=0),
            TierStats("slot", hits=9, misses=4, evictions=5, failures=0),
        ),
    )
    return StatusReport(status, versions, tenants)


def queue(tenant: str, *, running: int = 0, waiting: int = 0, weight: float = 1.0) -> TenantQueue:
    return TenantQueue(tenant, weight, running, waiting, counter=100.0 * running)
