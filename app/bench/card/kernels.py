"""Part ``kernels``: the kernel check at several ranks of slots, in an engine of one layer without a server."""

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from vllm import envs
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.lora.ops.triton_ops import utils as triton_utils
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.llm_engine import LLMEngine

from app.engine import hopper
from app.engine.arguments import engine_arguments
from app.engine.executor import CoreExecutor
from app.engine.kernel_report import KernelReport
from app.settings import EngineSettings, Settings

#: KV cache of an engine that runs no request.
_KV_CACHE_BYTES = 2**30
#: Slots: two adapters side by side, and the last slot, which a careless kernel takes for rows without an adapter.
_SLOTS = 4


@dataclass(frozen=True, slots=True)
class Checked:
    """Kernel check of one engine.

    Attributes:
        rank: of the slots.
        tokens: of the largest step.
        configuration: ``one stage`` with Tenora's files for Hopper cards, ``vLLM's own`` without.
        report: its result.
    """

    rank: int
    tokens: int
    configuration: str
    report: KernelReport


def check(base: Path, ranks: Sequence[int], *, dtype: str, tokens: int, kernel_configs: Path) -> Iterator[Checked]:
    """Check the kernels at each rank, on Hopper cards with and without Tenora's configuration.

    Args:
        base: folder of a Llama, of which one layer is used, with random weights.
        ranks: of the slots; sizes that vLLM has.
        dtype: of the engine.
        tokens: of the largest step.
        kernel_configs: folder for the configuration.
    """
    own, one_stage = "vLLM's own", "one stage"
    for rank in ranks:
        for configuration in (one_stage, own) if hopper.needs_workaround() else (own,):
            environ = dict[str, str]()
            if configuration == one_stage:
                hopper.use_one_stage(kernel_configs, environ, current_platform.get_device_name())
            with engine(base, rank, dtype=dtype, tokens=tokens, environ=environ) as started:
                yield Checked(rank, tokens, configuration, check_kernels(started))


def check_kernels(started: LLMEngine) -> KernelReport:
    [report] = started.collective_rpc("tenora_check_kernels")
    return KernelReport.of(report)


@contextmanager
def engine(
    base: Path, rank: int, *, dtype: str, tokens: int, environ: Mapping[str, str] | None = None
) -> Iterator[LLMEngine]:
    """An engine in this process, with Tenora's worker; arguments as of :func:`check`.

    Args:
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
