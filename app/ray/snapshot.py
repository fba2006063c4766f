"""Snapshots of engine replicas, and their sum: what a gateway knows of the engines."""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from app.engine.port import EngineEvent
from app.engine.status import (
    EngineState,
    EngineStatus,
    KernelChecks,
    ReplicaStatus,
    StatusReport,
    TenantQueue,
    TierStats,
    VersionResidency,
)
from app.ray.digest_prefixes import decode_digests, encode_digests
from app.ray.routes import RouteCounts
from app.ray.wire import WIRE_VERSION, OtherWireVersion, WireError
from app.scheduling.replica_report import ReplicaReport

#: Events and waits that a replica keeps for gateways. Gateways ask each second.
_KEPT = 1_000

_TIERS = ("loading", "disk", "host", "slot")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of one replica.

    Attributes:
        wire: wire version of the replica.
        process: random id of its process.
        pid: id of its process on its machine.
        report: the engine's report.
        routing: its state for the routing rule.
        number: events and waits that the process has counted.
        events: events after the number that the gateway asked for.
        waits: seconds that requests waited for admission, after the same number.
    """

    wire: int
    process: str
    pid: int
    report: StatusReport
    routing: ReplicaReport
    number: int = 0
    events: tuple[EngineEvent, ...] = ()
    waits: tuple[float, ...] = ()

    @property
    def node(self) -> str:
        """Id of its HOME."""
        return self.routing.node_id


#: Version id, tier, leases, running, waiting, bytes, oldest wait, draining.
_Version = tuple[int, Literal["slot", "host", "disk", "loading"], int, int, int, int, float, bool]


@dataclass(frozen=True, slots=True)
class _Message:
    """Snapshot as it is sent: without the names of fields that repeat, and with short digests."""

    wire: int
    process: str
    pid: int
    status: EngineStatus
    versions: list[_Version]
    tenants: list[TenantQueue]
    routing: ReplicaReport
    resident: str
    staged: str
    on_disk: str
    number: int
    events: tuple[EngineEvent, ...]
    waits: tuple[float, ...]


_MESSAGE = TypeAdapter(_Message)
_NONE: frozenset[str] = frozenset()


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encode a snapshot. Digests of versions go only into the sets of the routing state, as prefixes."""
    report, routing = snapshot.report, snapshot.routing
    message = _Message(
        wire=snapshot.wire,
        process=snapshot.process,
        pid=snapshot.pid,
        status=report.status,
        versions=[
            (one.version_id, one.tier, one.leases, one.running, one.waiting, one.bytes, one.oldest_wait_s, one.draining)
            for one in report.versions
        ],
        tenants=list(report.tenants),
        routing=replace(routing, resident=_NONE, staged=_NONE, on_disk=_NONE),
        resident=encode_digests(routing.resident),
        staged=encode_digests(routing.staged),
        on_disk=encode_digests(routing.on_disk),
        number=snapshot.number,
        events=snapshot.events,
        waits=snapshot.waits,
    )
    return _MESSAGE.dump_json(message)


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
        message = _MESSAGE.validate_json(data)
    except ValidationError:
        raise WireError("A snapshot is not valid.") from None
    return Snapshot(
        wire=message.wire,
        process=message.process,
        pid=message.pid,
        report=StatusReport(
            message.status, tuple(VersionResidency(*version) for version in message.versions), tuple(message.tenants)
        ),
        routing=replace(
            message.routing,
            resident=decode_digests(message.resident),
            staged=decode_digests(message.staged),
            on_disk=decode_digests(message.on_disk),
        ),
        number=message.number,
        events=message.events,
        waits=message.waits,
    )


def encode_numbers(numbers: Mapping[str, int]) -> bytes:
    """Encode a gateway's question: the number that it knows of each process."""
    return json.dumps(numbers).encode()


def decode_number(data: bytes, process: str) -> int | None:
    """Return the number that a gateway knows of a process; None if it knows none."""
    try:
        number = json.loads(data)[process]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return number if type(number) is int else None


class Recorder:
    """Last events and waits of one engine, numbered together."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, EngineEvent]] = deque(maxlen=_KEPT)
        self._waits: deque[tuple[int, float]] = deque(maxlen=_KEPT)
        self.number = 0

    def note(self, event: EngineEvent) -> None:
        self.number += 1
        self._events.append((self.number, event))

    def waited(self, seconds: float) -> None:
        self.number += 1
        self._waits.append((self.number, seconds))

    def events_after(self, number: int | None) -> tuple[EngineEvent, ...]:
        """Return later events; none for a gateway that has just met this process."""
        return () if number is None else tuple(event for own, event in self._events if own > number)

    def waits_after(self, number: int | None) -> tuple[float, ...]:
        """Return later waits; none for a gateway that has just met this process."""
        return () if number is None else tuple(seconds for own, seconds in self._waits if own > number)


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
    *("host_bytes", "host_used_bytes", "disk_bytes", "disk_used_bytes", "kv_tokens", "queued_tokens"),
)


def replica_status(snapshot: Snapshot, counts: RouteCounts) -> ReplicaStatus:
    """Return the state of a replica for operators."""
    status = snapshot.report.status
    return ReplicaStatus(
        node=snapshot.node,
        state=status.state,
        slots=status.slots,
        slots_used=status.slots_used,
        running=status.running,
        waiting=status.waiting,
        loads=status.loads,
        requests=counts.requests,
        retries=counts.retries,
        lost=counts.lost,
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
        tokens_per_s=sum(status.tokens_per_s or 0.0 for status in statuses) or None,
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
            digest=old.digest or new.digest,
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
