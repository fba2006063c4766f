"""What a check of the LoRA kernels came to, in the server and in its workers; see :mod:`app.engine.kernel_check`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """A layer that computes something else than its matrix products.

    Attributes:
        layer: its full name.
        rank: of the adapters in the slots.
        tokens: rows of the step.
        error: of the element that is furthest beyond its bound; NaN if it is not a number.
        allowed: the bound of that element.
    """

    layer: str
    rank: int
    tokens: int
    error: float
    allowed: float


class BrokenKernels(RuntimeError):
    """The LoRA kernels of an engine do not compute what they should: it must answer nobody."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(
            f"the LoRA kernels compute wrong numbers on this machine: {fault.layer}, rank {fault.rank}, "
            f"{fault.tokens} tokens: found an error of {fault.error:.3g}, allowed {fault.allowed:.3g}. "
            "Set VLLM_TUNED_CONFIG_FOLDER to kernel configurations for this card, or TENORA_ENGINE__DTYPE to another "
            "dtype, or install another version of vLLM, torch or the driver."
        )


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What a check came to.

    Attributes:
        seconds: that it took.
        layers: distinct ones that were compared.
        fault: the first that was found, or None.
    """

    seconds: float
    layers: int
    fault: Fault | None

    def plain(self) -> dict[str, Any]:
        """For a message between processes."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "KernelReport":
        fault = plain["fault"]
        return cls(plain["seconds"], plain["layers"], Fault(**fault) if fault else None)

    @classmethod
    def of_all(cls, workers: Sequence[Mapping[str, Any]]) -> "KernelReport":
        """The longest of several workers' checks.

        Raises:
            BrokenKernels: one of them found a fault.
        """
        reports = [cls.of(plain) for plain in workers]
        for report in reports:
            if report.fault:
                raise BrokenKernels(report.fault)
        return max(reports, key=lambda report: report.seconds)
