"""JSON schemas of the engine's status."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from app.domain.node_snapshots import NodeSnapshot
from app.engine.status import EngineStatus, KernelChecks, TenantQueue, Tier, TierStats
from app.services.limits.accounts import Health
from app.services.operations.engine_view import EngineView, OwnVersion, OwnView, ShownVersion
from app.services.operations.node_view import NamedPlacement, NodeOverview
from app.services.operations.recent_loads import LoadTimes

Place = Literal["slot", "host", "disk", "loading"]
_PLACE = "Fastest tier that holds it; `loading`: on its way, in no tier yet"


class EngineSlotsOut(BaseModel):
    total: int
    used: int = Field(description="Slots that hold an adapter")
    pinned: int = Field(description="Slots reserved for pinned versions")


class EngineQueueOut(BaseModel):
    window: int = Field(description="Maximum number of sequences in the engine at the same time")
    running: int
    waiting: int


class EngineTierOut(BaseModel):
    tier: Tier
    used_bytes: int | None = Field(description="Bytes in use; null for slots, which are only counted")
    limit_bytes: int | None
    hits: int
    misses: int
    hit_rate: float | None = Field(description="Hits divided by look-ups; null: no look-up yet")
    evictions: int
    failures: int

    @classmethod
    def of(cls, stats: TierStats, status: EngineStatus) -> Self:
        used, limit = {
            "disk": (status.disk_used_bytes, status.disk_bytes),
            "host": (status.host_used_bytes, status.host_bytes),
        }.get(stats.tier, (None, None))
        lookups = stats.hits + stats.misses
        return cls(
            tier=stats.tier,
            used_bytes=used,
            limit_bytes=limit,
            hits=stats.hits,
            misses=stats.misses,
            hit_rate=stats.hits / lookups if lookups else None,
            evictions=stats.evictions,
            failures=stats.failures,
        )


class LoadSecondsOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    fetch: float = Field(description="Seconds from the store to this server's disk")
    stage: float = Field(description="Seconds from the disk to host memory")
    wait: float = Field(description="Seconds of waiting for a slot")
    copy_: float = Field(alias="copy", description="Seconds from host memory to the slot")
    total: float


class LoadTimesOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    loads: int = Field(description="Number of recent loads that the percentiles cover")
    p50: LoadSecondsOut | None
    p99: LoadSecondsOut | None

    @classmethod
    def of(cls, times: LoadTimes) -> Self:
        return cls.model_validate(times)


class TenantQueueOut(BaseModel):
    tenant: str | None = Field(description="Slug of the tenant; null: background work of the server")
    weight: float
    running: int
    waiting: int
    counter: float = Field(description="Weighted tokens served. The tenant with the smallest counter is next.")

    @classmethod
    def of(cls, queue: TenantQueue) -> Self:
        return cls(
            tenant=queue.tenant or None,
            weight=queue.weight,
            running=queue.running,
            waiting=queue.waiting,
            counter=queue.counter,
        )


class LoadedVersionOut(BaseModel):
    id: int = Field(description="Id of the version, by which metrics of residency name it")
    name: str = Field(description="`tenant/adapter@number`")
    tier: Place = Field(description=_PLACE)
    pinned: bool
    draining: bool = Field(description="Whether it is giving up its slot and takes no new requests")
    leases: int = Field(description="Requests and pins that hold it")
    running: int
    waiting: int
    oldest_wait_s: float
    bytes: int

    @classmethod
    def of(cls, shown: ShownVersion) -> Self:
        residency = shown.residency
        return cls(
            id=residency.version_id,
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
    total: int = Field(description="Number of tenants with requests; the list may hold fewer")
    data: list[TenantQueueOut]


class LoadedVersionsOut(BaseModel):
    total: int = Field(description="Number of versions in any tier; the list may hold fewer")
    data: list[LoadedVersionOut]


class LimitCountingOut(BaseModel):
    available: bool = Field(description="Whether limits can be counted now")
    uncounted: int = Field(description="Requests that this server admitted while limits could not be counted")


class PlacedVersionOut(BaseModel):
    name: str = Field(description="`tenant/adapter@number`")
    tier: Literal["slot", "loading"]
    running: int
    waiting: int


class NodeEngineOut(BaseModel):
    """State of a node's engine at its last heartbeat."""

    age_s: float = Field(description="Age of this state in seconds. A node writes it every 5 s.")
    state: str
    device: str
    restarts: int
    hangs: int
    slots: EngineSlotsOut
    running: int
    waiting: int
    loads: int = Field(description="Adapters copied into a slot since the engine's start")
    host_used_bytes: int
    disk_used_bytes: int
    versions: list[PlacedVersionOut] = Field(description="Versions in slots, those with requests first")
    more_versions: int = Field(description="Number of further versions in slots")

    @classmethod
    def of(cls, snapshot: NodeSnapshot, age_s: float, versions: Sequence[NamedPlacement]) -> Self:
        return cls(
            age_s=age_s,
            state=snapshot.state,
            device=snapshot.device,
            restarts=snapshot.restarts,
            hangs=snapshot.hangs,
            slots=EngineSlotsOut(total=snapshot.slots, used=snapshot.slots_used, pinned=snapshot.pinned),
            running=snapshot.running,
            waiting=snapshot.waiting,
            loads=snapshot.loads,
            host_used_bytes=snapshot.host_used_bytes,
            disk_used_bytes=snapshot.disk_used_bytes,
            versions=[
                PlacedVersionOut(
                    name=named.name, tier=named.placed.tier, running=named.placed.running, waiting=named.placed.waiting
                )
                for named in versions
            ],
            more_versions=snapshot.more_versions + len(snapshot.versions) - len(versions),
        )


class ServerOut(BaseModel):
    id: str = Field(description="Id of the node, from its HOME")
    name: str
    alive: bool
    started_at: datetime
    seen_at: datetime = Field(description="Last heartbeat, by the node's own clock")
    clock_ahead_s: float | None = Field(
        description="Clock of the node minus clock of this server, in seconds; null: unknown"
    )
    clock_apart: bool = Field(description="Whether the clocks differ by more than 5 s")
    role: Literal["server", "gateway", "replica"] | None = Field(
        description="`server`: with an engine in its process; `gateway`: its engines are replicas; `replica`: an "
        "engine replica; null: a node of a release that does not report it"
    )
    engine: NodeEngineOut | None = Field(
        description="Null for a gateway, a node that has just started, and a node of an earlier release"
    )

    @classmethod
    def of(cls, shown: NodeOverview) -> Self:
        peer, node, state = shown.peer, shown.peer.node, shown.peer.state
        engine = None
        if state.snapshot is not None and peer.snapshot_age_s is not None:
            engine = NodeEngineOut.of(state.snapshot, peer.snapshot_age_s, shown.versions)
        return cls(
            role=None if state.role is None else state.role.value,
            engine=engine,
            id=node.id,
            name=node.name,
            alive=peer.alive,
            started_at=node.started_at,
            seen_at=node.seen_at,
            clock_ahead_s=peer.clock_ahead_s,
            clock_apart=peer.clock_apart,
        )


class ReplicaOut(BaseModel):
    """An engine replica as this server sees it, and this server's requests there since it joined."""

    model_config = ConfigDict(from_attributes=True)

    node: str = Field(description="Id of its node")
    state: str
    slots: int
    slots_used: int
    running: int = Field(description="Requests of all servers in its engine")
    waiting: int
    loads: int = Field(description="Adapters copied into a slot since its engine's start")
    requests: int = Field(description="Requests that this server sent to it")
    retries: int = Field(description="Requests of these that another replica had lost before")
    lost: int = Field(description="Requests of this server that it lost")


class KernelChecksOut(BaseModel):
    passed_at: datetime | None = Field(description="Time of the last kernel check that passed; null: none has")
    seconds: float | None = Field(description="Duration of that check, in seconds")
    failures: int = Field(description="Kernel checks since the server's start that found a fault")

    @classmethod
    def of(cls, checks: KernelChecks) -> Self:
        passed_at = None if checks.passed_at is None else datetime.fromtimestamp(checks.passed_at, UTC)
        return cls(passed_at=passed_at, seconds=checks.seconds, failures=checks.failures)


class EngineOut(BaseModel):
    node: str = Field(description="Server that answers. Without replicas, each server has its own engine.")
    state: str
    restarts: int = Field(description="Restarts after crashes and hangs, since the server's start")
    hangs: int = Field(description="Number of times that the engine was killed because it no longer answered")
    kernels: KernelChecksOut = Field(description="Checks of the LoRA kernels, one at each start of the engine")
    slots: EngineSlotsOut
    queue: EngineQueueOut
    tiers: list[EngineTierOut]
    load_seconds: LoadTimesOut
    tenants: TenantQueuesOut
    versions: LoadedVersionsOut
    limits: LimitCountingOut
    replicas: list[ReplicaOut] = Field(
        description="Engine replicas that this server sends requests to; empty with an engine in its process"
    )
    nodes: list[ServerOut] = Field(description="All servers and engine replicas on this registry")

    @classmethod
    def of(cls, view: EngineView, health: Health, nodes: Sequence[NodeOverview]) -> Self:
        status = view.status
        tenants = [TenantQueueOut.of(queue) for queue in view.tenants]
        versions = [LoadedVersionOut.of(shown) for shown in view.versions]
        return cls(
            node=view.node,
            state=status.state.value,
            restarts=status.restarts,
            hangs=status.hangs,
            kernels=KernelChecksOut.of(status.kernels),
            slots=EngineSlotsOut(total=status.slots, used=status.slots_used, pinned=len(status.pinned)),
            queue=EngineQueueOut(window=status.window, running=status.running, waiting=status.waiting),
            tiers=[EngineTierOut.of(stats, status) for stats in status.tiers],
            load_seconds=LoadTimesOut.of(view.loads),
            tenants=TenantQueuesOut(total=view.total_tenants, data=tenants),
            versions=LoadedVersionsOut(total=view.total_versions, data=versions),
            limits=LimitCountingOut(available=health.available, uncounted=health.uncounted),
            replicas=[ReplicaOut.model_validate(replica) for replica in view.replicas],
            nodes=[ServerOut.of(node) for node in nodes],
        )


class OwnLoadedVersionOut(BaseModel):
    name: str = Field(
        description="Name in the tenant's requests: `pricing@3`, or `retail/pricing@3` for a shared adapter"
    )
    tier: Place = Field(description=_PLACE)
    running: int | None = Field(
        description="Running requests; null for a shared adapter, whose requests may be other tenants'"
    )
    waiting: int | None

    @classmethod
    def of(cls, version: OwnVersion) -> Self:
        return cls(name=version.name, tier=version.tier, running=version.running, waiting=version.waiting)


class OwnEngineOut(BaseModel):
    running: int = Field(description="Requests of the tenant in the engine, including those of the base model")
    waiting: int
    total: int = Field(description="Number of the tenant's versions in any tier; the list may hold fewer")
    data: list[OwnLoadedVersionOut]

    @classmethod
    def of(cls, view: OwnView) -> Self:
        data = [OwnLoadedVersionOut.of(version) for version in view.versions]
        return cls(running=view.running, waiting=view.waiting, total=view.total, data=data)
