"""Simulated machine: an engine, its memory, and the interface of its scheduler."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from app.lab.simulator.costs import Costs
from app.scheduling.admission_request import AdmissionRequest, Bounds


class Scheduler(Protocol):
    """Interface of :class:`app.scheduling.admission.Admission` that the simulation uses."""

    @property
    def waiting(self) -> int: ...

    @property
    def queued_tokens(self) -> float: ...

    @property
    def tokens_per_s(self) -> float | None: ...

    def enter(self, request: AdmissionRequest, now: float) -> tuple[str, ...]: ...

    def leave(
        self, request_id: str, now: float, *, prompt_tokens: int | None = None, output_tokens: int | None = None
    ) -> tuple[str, ...]: ...

    def staged(self, version_id: int, now: float) -> tuple[str, ...]: ...

    def unstaged(self, version_id: int) -> None: ...

    def versions_to_stage(self) -> Iterable[int]: ...


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources and scheduling parameters of the engine.

    Attributes:
        slots: number of LoRA slots.
        window: maximum number of sequences in the engine.
        host_bytes: bytes of host memory for staged adapters.
        bytes_per_rank: adapter bytes per rank. The default fits a base of hidden size 1024 with 8 layers.
        loads: number of concurrent loads.
        max_age_s: T of the bound, in seconds.
        weights: weights of the tenants, round robin. The hostile tenant and the collector have weight 1.
        bounds: limits of the queue.
        costs: cost model.
    """

    slots: int = 64
    window: int = 128
    host_bytes: int = 8 * 2**30
    bytes_per_rank: int = 37_000_000 // 64
    loads: int = 4
    max_age_s: float = 0.5
    weights: tuple[float, ...] = (1.0, 2.0, 4.0)
    bounds: Bounds = field(default_factory=Bounds)
    costs: Costs = field(default_factory=Costs)
