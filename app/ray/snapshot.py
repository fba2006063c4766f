"""Snapshots of engine replicas, and their sum: what a gateway knows of the engines."""

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from pydantic import TypeAdapter, ValidationError

from app.engine.port import EngineEvent
from app.engine.status import (
    EngineState,
    EngineStatus,
    KernelChecks,
    StatusReport,
    TenantQueue,
    TierStats,
    VersionResidency,
)
from app.ray.wire import WIRE_VERSION, OtherWireVersion, WireError

#: Events and waits that a replica keeps for gateways. Gateways ask each second.
_KEPT = 1_000

_TIERS = ("loading", "disk", "host", "slot")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of one replica.

    Attributes:
        wire: wire version of the replica.
        node: id of its HOME.
        process: random id of its process.
        pid: id of its process on its machine.
        report: the engine's report.
        events: its last events, each with a number that counts up.
        waits: seconds that its last requests waited for admission, numbered alike.
    """

    wire: int
    node: str
    process: str
    pid: int
    report: StatusReport
    events: tuple[tuple[int, EngineEvent], ...] = ()
    waits: tuple[tuple[int, float], ...] = ()


_SNAPSHOT = TypeAdapter(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    return _SNAPSHOT.dump_json(snapshot)


def decode_snapshot(data: bytes) -> Snapshot:
    """Decode a snapshot.

    Raises:
        WireError
        OtherWireVersion: the replica runs another release.
    """
    try:
        version = json.loads(data)["wire"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WireError("A snapshot is not valid.") from None
    if version != WIRE_VERSION:
        raise OtherWireVersion(version)
    try:
        return _SNAPSHOT.validate_json(data)
    except ValidationError:
        raise WireError("A snapshot is not valid.") from None


class Recorder:
    """Last events and waits of one engine, numbered."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, EngineEvent]] = deque(maxlen=_KEPT)
        self._waits: deque[tuple[int, float]] = deque(maxlen=_KEPT)
        self._number = 0

    def note(self, event: EngineEvent) -> None:
        self._number += 1
        self._events.append((self._number, event))

    def waited(self, seconds: float) -> None:
        self._number += 1
        self._waits.append((self._number, seconds))

    def events(self) -> tuple[tuple[int, EngineEvent], ...]:
        return tuple(self._events)

    def waits(self) -> tuple[tuple[int, float], ...]:
        return tuple(self._waits)


#: Report of a fleet without replicas.
NO_REPORT = StatusReport(
    EngineStatus(
        state=EngineState.STARTING,
        slots=0,
        slots_used=0,
        window=0,
        pinned=frozenset(),
        running=0,
        waiting=0,
        restarts=0,
        hangs=0,
        host_bytes=0,
        host_used_bytes=0,
        disk_bytes=0,
        disk_used_bytes=0,
        tiers=(),
    ),
    (),
    (),
)

_SUMMED = (
    *("slots", "slots_used", "window", "running", "waiting", "restarts", "hangs"),
    *("host_bytes", "host_used_bytes", "disk_bytes", "disk_used_bytes", "kv_tokens"),
)


def merged(reports: Sequence[StatusReport]) -> StatusReport:
    """Add up the reports of several engines. The sum is ready if one of them is."""
    if not reports:
        return NO_REPORT
    statuses = [report.status for report in reports]
    states = {status.state for status in statuses}
    first = statuses[0]
    status = replace(
        first,
        state=EngineState.READY if EngineState.READY in states else first.state,
        pinned=frozenset[int]().union(*(status.pinned for status in statuses)),
        tiers=_tiers(tier for status in statuses for tier in status.tiers),
        kernels=_kernels([status.kernels for status in statuses]),
        device=", ".join(sorted({status.device for status in statuses if status.device})),
        **{name: sum(getattr(status, name) for status in statuses) for name in _SUMMED},
    )
    return StatusReport(
        status,
        _versions(version for report in reports for version in report.versions),
        _tenants(tenant for report in reports for tenant in report.tenants),
    )


def _versions(versions: Iterable[VersionResidency]) -> tuple[VersionResidency, ...]:
    """Join the entries of each version: its fastest tier, and the sum of its requests."""
    joined: dict[int, VersionResidency] = {}
    for new in versions:
        if (old := joined.get(new.version_id)) is None:
            joined[new.version_id] = new
            continue
        joined[new.version_id] = VersionResidency(
            new.version_id,
            tier=max(old.tier, new.tier, key=_TIERS.index),
            leases=old.leases + new.leases,
            running=old.running + new.running,
            waiting=old.waiting + new.waiting,
            bytes=old.bytes + new.bytes,
            oldest_wait_s=max(old.oldest_wait_s, new.oldest_wait_s),
            draining=old.draining or new.draining,
        )
    return tuple(joined.values())


def _tenants(tenants: Iterable[TenantQueue]) -> tuple[TenantQueue, ...]:
    joined: dict[str, TenantQueue] = {}
    for new in tenants:
        old = joined.get(new.tenant)
        joined[new.tenant] = new if old is None else _both(old, new)
    return tuple(joined.values())


def _both(old: TenantQueue, new: TenantQueue) -> TenantQueue:
    running, waiting = old.running + new.running, old.waiting + new.waiting
    return TenantQueue(old.tenant, new.weight, running, waiting, max(old.counter, new.counter))


def _tiers(tiers: Iterable[TierStats]) -> tuple[TierStats, ...]:
    joined: dict[str, TierStats] = {}
    for new in tiers:
        old = joined.get(new.tier)
        counts = (
            asdict(new)
            if old is None
            else {name: value if name == "tier" else value + getattr(old, name) for name, value in asdict(new).items()}
        )
        joined[new.tier] = TierStats(**counts)
    return tuple(joined.values())


def _kernels(checks: Sequence[KernelChecks]) -> KernelChecks:
    last = max(checks, key=lambda check: check.passed_at or 0.0)
    return replace(last, failures=sum(check.failures for check in checks))
