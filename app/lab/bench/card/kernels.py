"""Part ``kernels``: the kernel check at several ranks of slots, in an engine of one layer without a server."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from app.engine.vllm import hopper
from app.engine.vllm.kernel_report import BrokenKernels, KernelReport
from app.engine.vllm.one_layer_engine import check_kernels, one_layer_engine
from app.engine.vllm.platform import device_name
from app.lab.bench.card.options import Options, Result

_RANKS, _TOKENS = (8, 16, 32, 64, 128), 8192
_QUICK_RANKS, _QUICK_TOKENS = (8, 16), 512
#: Configurations of ``lora_expand``: with Tenora's files for Hopper cards, and without.
ONE_STAGE, OWN = "one stage", "vLLM's own"


@dataclass(frozen=True, slots=True)
class Checked:
    """Kernel check of one engine.

    Attributes:
        rank: of the slots.
        tokens: of the largest step.
        configuration: ``ONE_STAGE`` or ``OWN``.
        report: its result.
    """

    rank: int
    tokens: int
    configuration: str
    report: KernelReport


def run(options: Options) -> Result:
    """Check the kernels at each rank of slots, on Hopper cards with Tenora's configuration and without.

    Only the configuration that a server would use counts: without it a fault is what vLLM's own does on this card.
    """
    ranks, tokens = (_QUICK_RANKS, _QUICK_TOKENS) if options.quick else (_RANKS, _TOKENS)
    checked = list(_checks(options.the_base(), ranks, tokens, options.home / "kernels"))
    served = ONE_STAGE if hopper.needs_workaround() else OWN
    failures = [
        str(BrokenKernels(one.report.fault))
        for one in checked
        if one.report.fault is not None and one.configuration == served
    ]
    right = sum(one.report.fault is None for one in checked)
    return Result(
        f"{right} of {len(checked)} right, ranks {ranks[0]} to {ranks[-1]}, up to {tokens} tokens",
        {"served": served, "checks": [asdict(one) for one in checked]},
        [_table(checked)],
        failures,
    )


def _checks(base: Path, ranks: Sequence[int], tokens: int, kernel_configs: Path) -> Iterator[Checked]:
    for rank in ranks:
        for configuration in (ONE_STAGE, OWN) if hopper.needs_workaround() else (OWN,):
            environ = dict[str, str]()
            if configuration == ONE_STAGE:
                hopper.use_one_stage(kernel_configs, environ, device_name())
            with one_layer_engine(base, rank, dtype="bfloat16", tokens=tokens, environ=environ) as llm:
                yield Checked(rank, tokens, configuration, check_kernels(llm))


def _table(checked: Sequence[Checked]) -> Table:
    table = Table("rank", "configuration", "layers", "seconds", "result", title="LoRA kernels", title_justify="left")
    for check in checked:
        fault = check.report.fault
        result = "right" if fault is None else f"{fault.layer}, {fault.tokens} tokens: error {fault.error:.3g}"
        table.add_row(
            str(check.rank), check.configuration, str(check.report.layers), f"{check.report.seconds:.1f}", result
        )
    return table
