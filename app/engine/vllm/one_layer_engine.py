"""Engine of one layer without a server, for kernel checks at any rank of slots."""

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from vllm import envs
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.lora.ops.triton_ops import utils as triton_utils
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.llm_engine import LLMEngine

from app.engine.vllm.arguments import engine_arguments
from app.engine.vllm.kernel_report import KernelReport
from app.engine.vllm.platform import on_cpu
from app.engine.vllm.worker.in_core_executor import CoreExecutor
from app.settings import EngineSettings, Settings

#: KV cache of an engine that runs no request.
_KV_CACHE_BYTES = 2**30
#: Slots: two adapters side by side, and the last slot, which a careless kernel takes for rows without an adapter.
_SLOTS = 4


@contextmanager
def one_layer_engine(
    base: Path, rank: int, *, dtype: str, tokens: int, environ: Mapping[str, str] | None = None
) -> Iterator[LLMEngine]:
    """Run an engine of one layer in this process, with Tenora's worker and random weights.

    Args:
        base: folder of a Llama, for its shapes.
        rank: of the slots; a size that vLLM has.
        dtype: of base and slots.
        tokens: of the largest step.
        environ: variables that vLLM reads while this engine runs.
    """
    with _environment({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} | dict(environ or {})):
        llm = LLMEngine.from_engine_args(_engine_args(base, rank, dtype=dtype, tokens=tokens))
        try:
            llm.collective_rpc("tenora_prepare")
            yield llm
        finally:
            llm.engine_core.shutdown()
            del llm
            gc.unfreeze()
            cleanup_dist_env_and_memory()


def check_kernels(llm: LLMEngine) -> KernelReport:
    """Run the kernel check of the engine's worker."""
    [report] = llm.collective_rpc("tenora_check_kernels")
    return KernelReport.of(report)


def _engine_args(base: Path, rank: int, *, dtype: str, tokens: int) -> EngineArgs:
    settings = EngineSettings(dtype=dtype, max_lora_rank=rank, kv_cache_bytes=_KV_CACHE_BYTES)
    arguments = engine_arguments(Settings(engine=settings), base, served_name="base", cpu=on_cpu(), slots=_SLOTS)
    args = EngineArgs.from_cli_args(make_arg_parser(FlexibleArgumentParser()).parse_args(arguments))
    return replace(
        args,
        hf_overrides={"num_hidden_layers": 1},
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_num_batched_tokens=tokens,
        # vLLM would start a process for the worker of a CPU.
        distributed_executor_backend=CoreExecutor if on_cpu() else None,
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
