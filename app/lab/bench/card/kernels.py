"""Part ``kernels``: the kernel check at several ranks of slots, in an engine of one layer without a server."""

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.table import Table
from vllm import envs
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.lora.ops.triton_ops import utils as triton_utils
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.llm_engine import LLMEngine

from app.engine.vllm import hopper
from app.engine.vllm.arguments import engine_arguments
from app.engine.vllm.kernel_report import BrokenKernels, KernelReport
from app.engine.vllm.worker.in_core_executor import CoreExecutor
from app.lab.bench.card.options import Options, Result
from app.settings import EngineSettings, Settings

#: KV cache of an engine that runs no request.
_KV_CACHE_BYTES = 2**30
#: Slots: two adapters side by side, and the last slot, which a careless kernel takes for rows without an adapter.
_SLOTS = 4
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
                hopper.use_one_stage(kernel_configs, environ, current_platform.get_device_name())
            with engine(base, rank, dtype="bfloat16", tokens=tokens, environ=environ) as started:
                yield Checked(rank, tokens, configuration, check_kernels(started))


def _table(checked: Sequence[Checked]) -> Table:
    table = Table("rank", "configuration", "layers", "seconds", "result", title="LoRA kernels", title_justify="left")
    for check in checked:
        fault = check.report.fault
        result = "right" if fault is None else f"{fault.layer}, {fault.tokens} tokens: error {fault.error:.3g}"
        table.add_row(
            str(check.rank), check.configuration, str(check.report.layers), f"{check.report.seconds:.1f}", result
        )
    return table


def check_kernels(started: LLMEngine) -> KernelReport:
    [report] = started.collective_rpc("tenora_check_kernels")
    return KernelReport.of(report)


@contextmanager
def engine(
    base: Path, rank: int, *, dtype: str, tokens: int, environ: Mapping[str, str] | None = None
) -> Iterator[LLMEngine]:
    """An engine of one layer in this process, with Tenora's worker and random weights.

    Args:
        base: folder of a Llama, for its shapes.
        rank: of the slots; a size that vLLM has.
        dtype: of base and slots.
        tokens: of the largest step.
        environ: variables that vLLM reads while this engine runs.
    """
    with _environment({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} | dict(environ or {})):
        started = LLMEngine.from_engine_args(_engine_args(base, rank, dtype=dtype, tokens=tokens))
        try:
            started.collective_rpc("tenora_prepare")
            yield started
        finally:
            started.engine_core.shutdown()
            del started
            gc.unfreeze()
            cleanup_dist_env_and_memory()


def _engine_args(base: Path, rank: int, *, dtype: str, tokens: int) -> EngineArgs:
    settings = EngineSettings(dtype=dtype, max_lora_rank=rank, kv_cache_bytes=_KV_CACHE_BYTES)
    on_cpu = current_platform.is_cpu()
    arguments = engine_arguments(Settings(engine=settings), base, served_name="base", cpu=on_cpu, slots=_SLOTS)
    args = EngineArgs.from_cli_args(make_arg_parser(FlexibleArgumentParser()).parse_args(arguments))
    return replace(
        args,
        hf_overrides={"num_hidden_layers": 1},
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_num_batched_tokens=tokens,
        # vLLM would start a process for the worker of a CPU.
        distributed_executor_backend=CoreExecutor if on_cpu else None,
    )


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, with nothing cached of what vLLM read before."""
    before = dict(os.environ)
    os.environ.update(variables)
    envs.disable_envs_cache()
    for cached in (triton_utils.load_lora_op_config, triton_utils.get_lora_op_configs):
        cached.cache_clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
