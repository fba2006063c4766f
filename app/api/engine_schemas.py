"""JSON schemas of the engine's status."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from app.engine.status import EngineOverview, KernelChecks, TenantQueue, Tier, TierStats
from app.services.limits.accounts import Health
from app.services.operations.engine_view import EngineView, OwnVersion, OwnView, ShownVersion
from app.services.operations.nodes import Peer
from app.services.operations.recent_loads import LoadTimes

Place = Literal["slot", "host", "disk", "loading"]
_PLACE = "the fastest tier that has it; `loading`: on its way, in none of them yet"


class SlotsOut(BaseModel):
    total: int
    used: int = Field(description="that hold an adapter")
    pinned: int = Field(description="that a pinned version has for itself")


class QueueOut(BaseModel):
    window: int = Field(description="sequences that may be in the engine at the same time")
    running: int
    waiting: int


class TierOut(BaseModel):
    tier: Tier
    used_bytes: int | None = Field(description="null: slots are counted, not measured")
    limit_bytes: int | None
    hits: int
    misses: int
    hit_rate: float | None = Field(description="hits of all that was asked for; null: nothing was")
    evictions: int
    failures: int

    @classmethod
    def of(cls, stats: TierStats, overview: EngineOverview) -> Self:
        used, limit = {
            "disk": (overview.disk_used_bytes, overview.disk_bytes),
            "host": (overview.host_used_bytes, overview.host_bytes),
        }.get(stats.tier, (None, None))
        asked = stats.hits + stats.misses
        return cls(
            tier=stats.tier,
            used_bytes=used,
            limit_bytes=limit,
            hits=stats.hits,
            misses=stats.misses,
            hit_rate=stats.hits / asked if asked else None,
            evictions=stats.evictions,
            failures=stats.failures,
        )


class LoadSecondsOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    fetch: float = Field(description="seconds from the store to this server's disk")
    stage: float = Field(description="seconds from the disk into host memory")
    wait: float = Field(description="seconds of waiting for a slot")
    copy_: float = Field(alias="copy", description="seconds from host memory into the slot")
    total: float


class LoadsOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    loads: int = Field(description="recent ones, that the percentiles are of")
    p50: LoadSecondsOut | None
    p99: LoadSecondsOut | None

    @classmethod
    def of(cls, times: LoadTimes) -> Self:
        return cls.model_validate(times)


class TenantQueueOut(BaseModel):
    tenant: str | None = Field(description="null: the server's own work")
    weight: float
    running: int
    waiting: int
    counter: float = Field(description="weighted tokens served; the smallest goes next")

    @classmethod
    def of(cls, queue: TenantQueue) -> Self:
        return cls(
            tenant=queue.tenant or None,
            weight=queue.weight,
            running=queue.running,
            waiting=queue.waiting,
            counter=queue.counter,
        )


class VersionOut(BaseModel):
    name: str = Field(description="`tenant/adapter@number`")
    tier: Place = Field(description=_PLACE)
    pinned: bool
    draining: bool = Field(description="it gives its slot up: nobody joins it")
    leases: int = Field(description="requests and pins that hold it")
    running: int
    waiting: int
    oldest_wait_s: float
    bytes: int

    @classmethod
    def of(cls, shown: ShownVersion) -> Self:
        residency = shown.residency
        return cls(
            name=shown.name if shown.tenant is None else f"{shown.tenant}/{shown.name}",
            tier=residency.tier,
            pinned=shown.pinned,
            draining=residency.draining,
            leases=residency.leases,
            running=residency.running,
            waiting=residency.waiting,
            oldest_wait_s=residency.oldest_wait_s,
            bytes=residency.bytes,
        )


class TenantQueuesOut(BaseModel):
    total: int = Field(description="tenants with requests; the list may hold fewer")
    data: list[TenantQueueOut]


class VersionsOut(BaseModel):
    total: int = Field(description="versions in some tier; the list may hold fewer")
    data: list[VersionOut]


class CountingOut(BaseModel):
    available: bool = Field(description="whether limits can be counted just now")
    uncounted: int = Field(description="requests that this server let in while they could not")


class NodeOut(BaseModel):
    id: str = Field(description="of its HOME")
    name: str
    alive: bool
    started_at: datetime
    seen_at: datetime = Field(description="its last sign of life, by its own clock")
    clock_ahead_s: float | None = Field(description="its clock minus this server's; null: not known")
    clock_apart: bool = Field(description="whether the clocks are more than 5 s apart")

    @classmethod
    def of(cls, peer: Peer) -> Self:
        node = peer.node
        return cls(
            id=node.id,
            name=node.name,
            alive=peer.alive,
            started_at=node.started_at,
            seen_at=node.seen_at,
            clock_ahead_s=peer.clock_ahead_s,
            clock_apart=peer.clock_apart,
        )


class KernelsOut(BaseModel):
    passed_at: datetime | None = Field(description="time of the last kernel check that passed; null if none has")
    seconds: float | None = Field(description="duration of that check, in seconds")
    failures: int = Field(description="kernel checks since the server started that found a fault")

    @classmethod
    def of(cls, checks: KernelChecks) -> Self:
        passed_at = None if checks.passed_at is None else datetime.fromtimestamp(checks.passed_at, UTC)
        return cls(passed_at=passed_at, seconds=checks.seconds, failures=checks.failures)


class EngineOut(BaseModel):
    node: str = Field(description="the server that answers: each has an engine of its own")
    state: str
    restarts: int = Field(description="since the server started, after deaths and hangs")
    hangs: int = Field(description="times that the engine was killed because it no longer answered")
    kernels: KernelsOut = Field(description="checks of the LoRA kernels; each start of the engine runs one")
    slots: SlotsOut
    queue: QueueOut
    tiers: list[TierOut]
    load_seconds: LoadsOut
    tenants: TenantQueuesOut
    versions: VersionsOut
    limits: CountingOut
    nodes: list[NodeOut] = Field(description="all servers on this registry")

    @classmethod
    def of(cls, view: EngineView, health: Health, peers: Sequence[Peer]) -> Self:
        seen = view.overview
        tenants = [TenantQueueOut.of(queue) for queue in view.tenants]
        versions = [VersionOut.of(shown) for shown in view.versions]
        return cls(
            node=view.node,
            state=seen.state.value,
            restarts=seen.restarts,
            hangs=seen.hangs,
            kernels=KernelsOut.of(seen.kernels),
            slots=SlotsOut(total=seen.slots, used=view.slots_used, pinned=len(seen.pinned)),
            queue=QueueOut(window=seen.window, running=seen.running, waiting=seen.waiting),
            tiers=[TierOut.of(stats, seen) for stats in seen.tiers],
            load_seconds=LoadsOut.of(view.loads),
            tenants=TenantQueuesOut(total=len(seen.tenants), data=tenants),
            versions=VersionsOut(total=len(seen.versions), data=versions),
            limits=CountingOut(available=health.available, uncounted=health.uncounted),
            nodes=[NodeOut.of(peer) for peer in peers],
        )


class OwnVersionOut(BaseModel):
    name: str = Field(description="as the tenant writes it: `pricing@3`, or `retail/pricing@3` of one that is shared")
    tier: Place = Field(description=_PLACE)
    running: int | None = Field(description="null: the adapter is shared, and whose requests they are is not told")
    waiting: int | None

    @classmethod
    def of(cls, version: OwnVersion) -> Self:
        return cls(name=version.name, tier=version.tier, running=version.running, waiting=version.waiting)


class OwnEngineOut(BaseModel):
    running: int = Field(description="the tenant's requests in the engine, those of the base model too")
    waiting: int
    total: int = Field(description="the tenant's versions in some tier; the list may hold fewer")
    data: list[OwnVersionOut]

    @classmethod
    def of(cls, view: OwnView) -> Self:
        data = [OwnVersionOut.of(version) for version in view.versions]
        return cls(running=view.running, waiting=view.waiting, total=view.total, data=data)
