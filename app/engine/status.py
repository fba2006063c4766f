"""Observable state of an engine: plain data for operators and metrics."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class EngineState(StrEnum):
    """State of an engine, or of the engine replicas together.

    Attributes:
        ASLEEP: no replica runs, because none was needed. The next request starts one, and waits for it.
    """

    ASLEEP = "asleep"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


Tier = Literal["disk", "host", "slot"]


@dataclass(frozen=True, slots=True)
class VersionResidency:
    """Residency of one version in this process, and the demand for it.

    Attributes:
        tier: fastest tier that has the version; ``loading``: no tier has it yet.
        leases: requests that hold it, and pins.
        running: its requests in the engine.
        waiting: its requests that wait for admission.
        bytes: size in host memory; 0 if it is not there.
        oldest_wait_s: seconds that its first waiting request has waited; 0 if none waits.
        draining: whether it must give its slot to an older waiting request, so that it admits no more requests.
        digest: its content digest; empty if it is unknown.
    """

    version_id: int
    tier: Literal["slot", "host", "disk", "loading"]
    leases: int
    running: int
    waiting: int
    bytes: int
    oldest_wait_s: float
    draining: bool
    digest: str = ""


@dataclass(frozen=True, slots=True)
class TenantQueue:
    """Queue of one tenant, with its weight and its virtual counter of weighted tokens."""

    tenant: str
    weight: float
    running: int
    waiting: int
    counter: float


@dataclass(frozen=True, slots=True)
class TierStats:
    """Cache statistics of a tier since the engine's last start; for the disk, since the process began.

    Attributes:
        hits: lookups that found the version there.
        misses: lookups that had to bring it there.
        evictions: versions removed to make room.
        failures: versions that could not be brought there.
    """

    tier: Tier
    hits: int
    misses: int
    evictions: int
    failures: int


@dataclass(frozen=True, slots=True)
class KernelChecks:
    """Kernel checks since the server started. Each start of the engine runs one.

    Attributes:
        failures: checks that found a fault.
        passed_at: time of the last check that passed, in Unix seconds.
        seconds: duration of that check.
    """

    failures: int = 0
    passed_at: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Snapshot of the engine and its tiers, of constant cost; sizes in bytes.

    Attributes:
        slots_used: slots that hold an adapter, or one that is loading.
        window: maximum number of sequences in the engine.
        pinned: versions that are pinned, or will be once the engine has restarted.
        running: requests in the engine that have not ended.
        waiting: requests that wait for admission, for example for a LoRA slot.
        restarts: engine restarts since the process began.
        hangs: engines killed because they no longer answered.
        device: name of the engine's device, such as ``cpu``; empty if it is unknown.
        kv_tokens: tokens that fit in the KV cache; 0 until the engine has started.
        queued_tokens: expected weighted tokens of the waiting requests.
        tokens_per_s: service rate under load in weighted tokens; None if too little was measured.
    """

    state: EngineState
    slots: int
    slots_used: int
    window: int
    pinned: frozenset[int]
    running: int
    waiting: int
    restarts: int
    hangs: int
    host_bytes: int
    host_used_bytes: int
    disk_bytes: int
    disk_used_bytes: int
    tiers: tuple[TierStats, ...]
    kernels: KernelChecks = KernelChecks()
    device: str = ""
    kv_tokens: int = 0
    queued_tokens: float = 0.0
    tokens_per_s: float | None = None

    @property
    def loads(self) -> int:
        """Return the adapters that were copied into a slot since the engine's start."""
        return sum(tier.misses for tier in self.tiers if tier.tier == "slot")


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """State of one engine replica of a fleet, and what this gateway has sent to it.

    Attributes:
        node: id of its node.
        loads: adapters that were copied into a slot since its engine's start.
        requests: requests of this gateway that reached it.
        retries: requests of these that another replica had lost before.
        lost: requests of this gateway that it lost.
    """

    node: str
    state: EngineState
    slots: int
    slots_used: int
    running: int
    waiting: int
    loads: int
    requests: int = 0
    retries: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class StatusReport:
    """Status with every version in host memory, in a slot or in demand, and every tenant in the queue.

    A report of a fleet also has each of its replicas.

    The lists block the event loop longer than a periodic job may: see
    docs/decisions/0042-calls-that-bring-their-outcome.md.
    """

    status: EngineStatus
    versions: tuple[VersionResidency, ...]
    tenants: tuple[TenantQueue, ...]
    replicas: tuple[ReplicaStatus, ...] = ()
