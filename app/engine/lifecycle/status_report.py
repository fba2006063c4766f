"""Operator's snapshot of the tiers and queues, read without side effects."""

from adapters.cache import DiskCache
from app.engine.lifecycle.engine_session import EngineSession
from app.engine.status import EngineOverview, EngineState, KernelChecks, TenantQueue, Tier, TierStats, VersionResidency
from app.scheduling.snapshot import QueueSnapshot, VersionState


def overview(
    life: EngineSession | None,
    cache: DiskCache,
    *,
    state: EngineState,
    restarts: int,
    hangs: int,
    slots: int,
    host_bytes: int,
    kernels: KernelChecks,
) -> EngineOverview:
    """Return the current state of the engine; without a session, only the tiers below it."""
    queue = life.queue.snapshot() if life else QueueSnapshot((), ())
    disk = TierStats("disk", cache.hits, cache.misses, cache.evictions, cache.failures)
    return EngineOverview(
        state=state,
        slots=slots,
        window=life.window if life else 0,
        pinned=life.pins.versions if life else frozenset(),
        running=life.instance.running if life else 0,
        waiting=life.queue.waiting if life else 0,
        restarts=restarts,
        hangs=hangs,
        host_bytes=host_bytes,
        host_used_bytes=life.loader.host.residency.used if life else 0,
        disk_bytes=cache.budget,
        disk_used_bytes=cache.used_bytes,
        versions=_versions(life, queue) if life else (),
        tenants=tuple(
            TenantQueue(one.tenant, one.weight, one.running, one.waiting, one.counter) for one in queue.tenants
        ),
        tiers=(disk, *_tiers(life)) if life else (disk,),
        kernels=kernels,
    )


def _tiers(life: EngineSession) -> tuple[TierStats, ...]:
    host, slots = life.loader.host.residency, life.loader.slots
    return (
        TierStats("host", host.hits, host.misses, host.evictions, life.loader.host.failures),
        TierStats("slot", slots.hits, slots.misses, slots.evictions, life.loader.failures),
    )


def _versions(life: EngineSession, queue: QueueSnapshot) -> tuple[VersionResidency, ...]:
    loader = life.loader
    queued = {one.version_id: one for one in queue.versions}
    version_ids = sorted(loader.slots.residents | loader.host.residency.residents | queued.keys())
    return tuple(_residency(life, version_id, queued.get(version_id)) for version_id in version_ids)


def _residency(life: EngineSession, version_id: int, queued: VersionState | None) -> VersionResidency:
    loader = life.loader
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
    )
