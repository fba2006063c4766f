"""Snapshots of an engine, its tiers and its queues, read without side effects."""

from adapters.cache import DiskCache
from app.engine.lifecycle.engine_session import EngineSession
from app.engine.status import (
    EngineState,
    EngineStatus,
    KernelChecks,
    StatusReport,
    TenantQueue,
    Tier,
    TierStats,
    VersionResidency,
)
from app.scheduling.snapshot import QueueSnapshot, VersionState


def engine_status(
    session: EngineSession | None,
    cache: DiskCache,
    *,
    state: EngineState,
    restarts: int,
    hangs: int,
    pinned: frozenset[int],
    slots: int,
    host_bytes: int,
    kernels: KernelChecks,
    device: str,
) -> EngineStatus:
    """Return the current state of the engine; without a session, only the tiers below it."""
    disk = TierStats("disk", cache.hits, cache.misses, cache.evictions, cache.failures)
    return EngineStatus(
        state=state,
        slots=slots,
        slots_used=len(session.loader.slots) if session else 0,
        window=session.window if session else 0,
        pinned=pinned,
        running=session.instance.running if session else 0,
        waiting=session.queue.waiting if session else 0,
        restarts=restarts,
        hangs=hangs,
        host_bytes=host_bytes,
        host_used_bytes=session.loader.host.residency.used if session else 0,
        disk_bytes=cache.budget,
        disk_used_bytes=cache.used_bytes,
        tiers=(disk, *_tiers(session)) if session else (disk,),
        kernels=kernels,
        device=device,
        kv_tokens=session.instance.kv_tokens if session else 0,
        queued_tokens=session.queue.queued_tokens if session else 0.0,
        tokens_per_s=session.queue.tokens_per_s if session else None,
    )


def status_report(status: EngineStatus, session: EngineSession | None) -> StatusReport:
    """Complete a status with the session's versions and tenants."""
    if session is None:
        return StatusReport(status, (), ())
    queue = session.queue.snapshot()
    tenants = tuple(
        TenantQueue(tenant.tenant, tenant.weight, tenant.running, tenant.waiting, tenant.counter)
        for tenant in queue.tenants
    )
    return StatusReport(status, _versions(session, queue), tenants)


def _tiers(session: EngineSession) -> tuple[TierStats, ...]:
    host, slots = session.loader.host.residency, session.loader.slots
    return (
        TierStats("host", host.hits, host.misses, host.evictions, session.loader.host.failures),
        TierStats("slot", slots.hits, slots.misses, slots.evictions, session.loader.failures),
    )


def _versions(session: EngineSession, queue: QueueSnapshot) -> tuple[VersionResidency, ...]:
    loader = session.loader
    queued = {version.version_id: version for version in queue.versions}
    version_ids = sorted(loader.slots.residents | loader.host.residency.residents | queued.keys())
    return tuple(_residency(session, version_id, queued.get(version_id)) for version_id in version_ids)


def _residency(session: EngineSession, version_id: int, queued: VersionState | None) -> VersionResidency:
    loader = session.loader
    tier: Tier | None = None
    if version_id in loader.slots:
        tier = "slot"
    elif loader.host.is_staged(version_id):
        tier = "host"
    return VersionResidency(
        version_id=version_id,
        tier=tier or "loading",
        leases=loader.slots.leases(version_id) + loader.host.residency.leases(version_id),
        running=queued.running if queued else 0,
        waiting=queued.waiting if queued else 0,
        bytes=loader.host.residency.size(version_id),
        oldest_wait_s=queued.oldest_wait_s if queued else 0.0,
        draining=queued.draining if queued else False,
        digest=loader.digest(version_id),
    )
