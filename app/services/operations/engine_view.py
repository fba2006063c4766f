"""Engine views: residency of adapters and request queues, complete for the platform, restricted for a tenant."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse, islice
from typing import Final, Literal

from app.database import events
from app.database import residency as residency_repo
from app.database.residency import KnownVersion
from app.database.session import Database
from app.engine.port import Status
from app.engine.status import EngineStatus, ReplicaStatus, StatusReport, TenantQueue, VersionResidency
from app.services.common.lookups import tenant_or_404
from app.services.operations.recent_loads import LoadTimes, RecentLoads

DEFAULT_SHOWN, MAX_SHOWN = 100, 1000

_TIERS: Final = {"slot": 0, "loading": 1, "host": 2, "disk": 3}


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """One version in the platform's view.

    Attributes:
        tenant, name: owner's slug and ``pricing@3``; None and ``version 7`` if the version is not in the registry.
    """

    tenant: str | None
    name: str
    pinned: bool
    residency: VersionResidency


@dataclass(frozen=True, slots=True)
class EngineView:
    """Platform's view of this process's engine, or of the engine replicas behind it.

    Attributes:
        node: name of this server.
        total_versions, total_tenants: numbers of versions and tenants in the engine's report.
        versions, tenants: the most relevant entries: waiting requests first, then running ones, then the fastest tier.
        loads: durations of recent loads.
        replicas: engine replicas, if the engine is a fleet.
    """

    node: str
    status: EngineStatus
    total_versions: int
    total_tenants: int
    versions: tuple[ShownVersion, ...]
    tenants: tuple[TenantQueue, ...]
    loads: LoadTimes
    replicas: tuple[ReplicaStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnVersion:
    """One version in a tenant's view.

    Attributes:
        name: name by which the tenant calls it.
        tier: tier as in :class:`app.engine.status.VersionResidency`.
        running, waiting: numbers of its requests; None for a shared adapter, where they may include other tenants'.
    """

    name: str
    tier: Literal["slot", "host", "disk", "loading"]
    running: int | None
    waiting: int | None


@dataclass(frozen=True, slots=True)
class OwnView:
    """Tenant's view of the engine. No number in it depends on other tenants' requests.

    Evictions remain visible, so a tenant can infer that others need the slots.

    Attributes:
        running, waiting: numbers of the tenant's requests, including those to the base model.
        total: number of its versions that are in some tier.
        versions: the most relevant of these versions.
    """

    running: int
    waiting: int
    total: int
    versions: tuple[OwnVersion, ...]


class EngineViewService:
    """Combines the status of this process's engine with names from the registry. Records the engine's loads.

    Args:
        node: name of this server.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(self, database: Database, engine: Status, *, node: str) -> None:
        self._database, self._engine, self._node = database, engine, node
        self._loads = RecentLoads()
        engine.subscribe(self._loads.note)

    async def whole(self, limit: int = DEFAULT_SHOWN) -> EngineView:
        """Return the platform's view with at most ``limit`` versions and ``limit`` tenants."""
        report = self._engine.report()
        versions = _most_interesting(report.versions, limit)
        async with self._database.read() as connection:
            names = await events.version_names(connection, [version.version_id for version in versions])
        return EngineView(
            node=self._node,
            status=report.status,
            total_versions=len(report.versions),
            total_tenants=len(report.tenants),
            versions=tuple(_shown(version, report.status, names) for version in versions),
            tenants=tuple(heapq.nsmallest(limit, report.tenants, key=_queue_interest)),
            loads=self._loads.times(),
            replicas=report.replicas,
        )

    async def own(self, tenant: str, limit: int = DEFAULT_SHOWN) -> OwnView:
        """Return a tenant's view with at most ``limit`` versions, including those shared with it.

        Raises:
            NotFound
        """
        report = self._engine.report()
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
            known_versions = await residency_repo.known_versions(connection, owner.id)
        return own_view(report, tenant, known_versions, limit)


def own_view(report: StatusReport, tenant: str, known_versions: Mapping[int, KnownVersion], limit: int) -> OwnView:
    """Build a tenant's view: the tiers of the versions that it may name, and its requests."""
    versions = [
        _own(version, known_versions[version.version_id])
        for version in report.versions
        if version.version_id in known_versions
    ]
    queue = next((queue for queue in report.tenants if queue.tenant == tenant), None)
    return OwnView(
        running=queue.running if queue else 0,
        waiting=queue.waiting if queue else 0,
        total=len(versions),
        versions=tuple(heapq.nsmallest(limit, versions, key=_own_interest)),
    )


def _shown(version: VersionResidency, status: EngineStatus, names: Mapping[int, tuple[str, str]]) -> ShownVersion:
    tenant, name = names.get(version.version_id, (None, f"version {version.version_id}"))
    return ShownVersion(tenant, name, version.version_id in status.pinned, version)


def _own(version: VersionResidency, entry: KnownVersion) -> OwnVersion:
    if entry.shared:
        return OwnVersion(entry.name, version.tier, None, None)
    return OwnVersion(entry.name, version.tier, version.running, version.waiting)


def _most_interesting(versions: Sequence[VersionResidency], limit: int) -> list[VersionResidency]:
    # Thousands of versions may be idle on disk. Ranking all of them would block the event loop for milliseconds.
    shown = heapq.nsmallest(limit, filterfalse(_idle, versions), key=_interest)
    return shown + list(islice(filter(_idle, versions), limit - len(shown)))


def _idle(version: VersionResidency) -> bool:
    return version.tier == "disk" and not (version.waiting or version.running)


def _interest(version: VersionResidency) -> tuple[float, ...]:
    tier = _TIERS[version.tier]
    return (-version.waiting, -version.running, tier, -version.oldest_wait_s, version.version_id)


def _queue_interest(queue: TenantQueue) -> tuple[int, int, str]:
    return (-queue.waiting, -queue.running, queue.tenant)


def _own_interest(version: OwnVersion) -> tuple[int, int, int, str]:
    # Rank by what the tenant sees: any other order would reveal other tenants' activity.
    return (-(version.waiting or 0), -(version.running or 0), _TIERS[version.tier], version.name)
