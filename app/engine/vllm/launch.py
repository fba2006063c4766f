"""From arguments to vLLM's engine, with what Tenora puts in."""

import os
from pathlib import Path
from typing import Any

from vllm import envs
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import async_llm
from vllm.v1.engine import utils as engine_utils
from vllm.v1.engine.async_llm import AsyncLLM

from app.engine.vllm import hopper
from app.engine.vllm.patches.cached_lookups import work_out_once
from app.engine.vllm.patches.stats_logger import EngineStatistics, TokenStatistics
from app.engine.vllm.patches.stream_events import write_plainly
from app.engine.vllm.requirements import do_without_compiler
from app.engine.vllm.scheduler.prefill_chunking import can_bound_steps
from app.engine.vllm.worker.fork_server import EngineContext, end_engines
from app.engine.vllm.worker.in_core_executor import CoreExecutor, fits_in_core

#: vLLM's own processes inherit these.
ENVIRONMENT = {
    # Count NaN in the logits of every step, and go on when there are some: the requests of other tenants are sound.
    "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
    "VLLM_RAISE_ON_LOGIT_NANS": "0",
    # What does not come from the fork server, such as the workers of several cards, starts as under vLLM's own server.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
SCHEDULER = "app.engine.vllm.worker.extension.ClearingScheduler"
ASYNC_SCHEDULER = "app.engine.vllm.worker.extension.ClearingAsyncScheduler"
BOUNDED_SCHEDULER = "app.engine.vllm.worker.extension.BoundedScheduler"


def construct(arguments: list[str], kernel_configs: Path) -> tuple[AsyncLLM, Any]:
    """Parse and start; takes seconds, so it runs in a thread.

    Args:
        kernel_configs: folder for kernel configurations, where this machine's card needs some.

    Raises:
        Exception: whatever vLLM raises when it cannot start.
    """
    envs.disable_envs_cache()  # of the life before, see below
    os.environ.update(ENVIRONMENT)
    # Its processes would trace their own steps there, by another protocol and unasked. Ours has read it by now.
    os.environ.pop("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", None)
    if current_platform.is_cpu():
        do_without_compiler(os.environ)
    if hopper.needs_workaround():
        hopper.use_one_stage(kernel_configs, os.environ, current_platform.get_device_name())
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    # The context decides defaults such as the batch size: these are those of vLLM's own server.
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(UsageContext.OPENAI_API_SERVER)
    config.scheduler_config.scheduler_cls = _scheduler(config)
    # Whoever names an executor gets it.
    if args.distributed_executor_backend is None and fits_in_core(config):
        config.parallel_config.distributed_executor_backend = CoreExecutor
    if config.parallel_config.numa_bind:
        # To bind memory, vLLM starts a program that starts the process: there is no use for a fork server.
        end_engines()
    else:
        engine_utils.get_mp_context = EngineContext
    # Of several tokens of a speculation vLLM means to count the step, once.
    if not config.speculative_config:
        async_llm.IterationStats = TokenStatistics
    write_plainly()
    # "Disabled" are vLLM's own loggers; one that is named is asked all the same.
    llm = AsyncLLM.from_vllm_config(config, stat_loggers=[EngineStatistics], disable_log_stats=True)
    # Its processes do it by themselves: every request asks the environment for the same things, some dozens of times.
    envs.enable_envs_cache()
    work_out_once(llm)
    return llm, args


def _scheduler(config: VllmConfig) -> str:
    if config.scheduler_config.async_scheduling:
        return ASYNC_SCHEDULER
    return BOUNDED_SCHEDULER if can_bound_steps(config) else SCHEDULER
