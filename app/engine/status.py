"""What can be seen of an engine from outside: plain data for operators and metrics."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


Tier = Literal["disk", "host", "slot"]


@dataclass(frozen=True, slots=True)
class VersionResidency:
    """Where one version is in this process, and who wants it.

    Attributes:
        tier: the fastest tier that has it; ``loading``: it is on its way and in none of them.
        leases: requests that hold it, and pins.
        running: requests of it in the engine.
        waiting: requests of it that wait to enter.
        bytes: that it takes in host memory; 0 if it is not there.
        oldest_wait_s: seconds that the first of them has waited; 0 if none waits.
        draining: it holds a slot that an older waiter is to have: nobody joins it.
    """

    version_id: int
    tier: Literal["slot", "host", "disk", "loading"]
    leases: int
    running: int
    waiting: int
    bytes: int
    oldest_wait_s: float
    draining: bool


@dataclass(frozen=True, slots=True)
class TenantQueue:
    """One tenant's requests, with its weight and its virtual counter of weighted tokens."""

    tenant: str
    weight: float
    running: int
    waiting: int
    counter: float


@dataclass(frozen=True, slots=True)
class TierStats:
    """How often a tier had what was asked for, since the engine last started (the disk: since the process did).

    Attributes:
        hits: found there.
        misses: had to be brought there.
        evictions: taken out to make room.
        failures: could not be brought there.
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
class EngineOverview:
    """Everything that an operator can see of the engine's tiers and queues at one moment; sizes in bytes."""

    state: EngineState
    slots: int
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
    versions: tuple[VersionResidency, ...]
    tenants: tuple[TenantQueue, ...]
    tiers: tuple[TierStats, ...]
    kernels: KernelChecks = KernelChecks()
