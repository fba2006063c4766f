"""Snapshot of the queue for display."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.scheduling.queues import Tenant, Version


@dataclass(frozen=True, slots=True)
class TenantState:
    """A tenant with a waiting or running request; ``counter`` is in weighted tokens divided by the weight."""

    tenant: str
    weight: float
    running: int
    waiting: int
    counter: float


@dataclass(frozen=True, slots=True)
class VersionState:
    """A version with a waiting or running request, or with a slot.

    Attributes:
        oldest_wait_s: seconds that its oldest waiting request has waited; 0 if none waits.
        draining: True if it gives its slot up to a waiting version and admits no request.
    """

    version_id: int
    running: int
    waiting: int
    oldest_wait_s: float
    holds_slot: bool
    draining: bool


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """Tenants and versions, unordered."""

    tenants: tuple[TenantState, ...]
    versions: tuple[VersionState, ...]


def taken(tenants: Iterable[Tenant], versions: Iterable[Version], now: float) -> QueueSnapshot:
    """Take a snapshot of these tenants and versions."""
    return QueueSnapshot(
        tenants=tuple(
            TenantState(tenant.name, tenant.weight, tenant.running, tenant.waiting, tenant.counter)
            for tenant in tenants
        ),
        versions=tuple(
            VersionState(
                version_id=version.version_id,
                running=version.running,
                waiting=len(version.waiting),
                oldest_wait_s=now - version.waiting.oldest.arrived if version.waiting else 0.0,
                holds_slot=version.holds_slot,
                draining=version.drains_since is not None,
            )
            for version in versions
        ),
    )
