"""Result of a kernel check, as server and workers exchange it; see :mod:`app.engine.vllm.worker.kernel_check`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """Layer whose output differs from its matrix products by more than rounding.

    Attributes:
        layer: full name of the module.
        rank: of the adapters in the slots.
        tokens: rows of the step.
        error: of the element that exceeds its bound most; NaN if that element is NaN.
        allowed: bound of that element.
    """

    layer: str
    rank: int
    tokens: int
    error: float
    allowed: float


class BrokenKernels(RuntimeError):
    """The LoRA kernels compute wrong numbers, so the engine must not answer.

    Attributes:
        fault: the first that the check found.
    """

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        largest = f"the largest error is {fault.error:.3g}" if isfinite(fault.error) else "the output is not finite"
        super().__init__(
            f"The LoRA kernels of this machine compute wrong numbers (layer {fault.layer}, rank {fault.rank}, "
            f"{fault.tokens} tokens): {largest}, and rounding explains {fault.allowed:.3g}. "
            "On a GPU, set VLLM_TUNED_CONFIG_FOLDER to kernel configurations that suit the card. "
            "Otherwise, set TENORA_ENGINE__DTYPE to another dtype, or install another version of torch, vLLM or the "
            "driver."
        )


@dataclass(frozen=True, slots=True)
class KernelReport:
    """Result of one kernel check.

    Attributes:
        seconds: duration.
        layers: number of distinct layers.
        fault: the first fault, or None.
    """

    seconds: float
    layers: int
    fault: Fault | None

    def plain(self) -> dict[str, Any]:
        """Plain values for a message between processes."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "KernelReport":
        fault = plain["fault"]
        return cls(plain["seconds"], plain["layers"], Fault(**fault) if fault else None)

    @classmethod
    def of_workers(cls, reports: Sequence[Mapping[str, Any]]) -> "KernelReport":
        """The slowest worker's report.

        Raises:
            BrokenKernels: a worker found a fault.
        """
        worker_reports = [cls.of(plain) for plain in reports]
        for report in worker_reports:
            if report.fault:
                raise BrokenKernels(report.fault)
        return max(worker_reports, key=lambda report: report.seconds)
