"""Construction of vLLM's engine from arguments, with Tenora's scheduler, executor and patches."""

import logging
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from vllm import envs
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import utils as engine_utils
from vllm.v1.engine.async_llm import AsyncLLM

from app.engine.vllm import hopper
from app.engine.vllm.patches.ledger import OPTIONAL, applied
from app.engine.vllm.patches.stats_logger import EngineStatistics
from app.engine.vllm.patches.stream_nulls import omit_nulls
from app.engine.vllm.requirements import compile_nothing
from app.engine.vllm.worker.fork_server import EngineContext, end_engines, secrets_hidden
from app.engine.vllm.worker.in_core_executor import CoreExecutor, fits_in_core

logger = logging.getLogger(__name__)

#: Environment that vLLM's processes inherit.
ENVIRONMENT = {
    # Count NaN in the logits of every step, and continue after NaN: the requests of other tenants are sound.
    "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
    "VLLM_RAISE_ON_LOGIT_NANS": "0",
    # Start method for processes outside the fork server, such as the workers of several cards; vLLM's server uses it.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
#: Function that vLLM's core calls instead of a scheduler's class.
SCHEDULER = "app.engine.vllm.scheduler.composition.scheduler"


def construct(arguments: list[str], kernel_configs: Path) -> tuple[AsyncLLM, Any]:
    """Parse the arguments and start the engine. It takes seconds, so call it in a thread.

    Args:
        kernel_configs: folder for kernel configurations, if this machine's card needs any.

    Raises:
        Exception: any error of vLLM's start.
    """
    envs.disable_envs_cache()  # enabled below in the session before
    os.environ.update(ENVIRONMENT)
    # vLLM's processes would export traces of their steps there, by another protocol. Tenora has read it by now.
    os.environ.pop("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", None)
    if current_platform.is_cpu():
        compile_nothing(os.environ)
    if hopper.needs_workaround():
        hopper.use_one_stage(kernel_configs, os.environ, current_platform.get_device_name())
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    # The usage context decides defaults such as the batch size. Use the defaults of vLLM's own server.
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(UsageContext.OPENAI_API_SERVER)
    patches = _patch_server(config)
    # An executor that the operator names takes precedence.
    if "in_core_executor" in patches and args.distributed_executor_backend is None and fits_in_core(config):
        config.parallel_config.distributed_executor_backend = CoreExecutor
    starting: AbstractContextManager[None] = nullcontext()
    if config.parallel_config.numa_bind:
        # To bind memory, vLLM starts each process through another program, which makes the fork server useless.
        end_engines()
        starting = secrets_hidden()
    else:
        engine_utils.get_mp_context = EngineContext
    # disable_log_stats turns off vLLM's default loggers only. A logger in stat_loggers still runs.
    with starting:
        llm = AsyncLLM.from_vllm_config(config, stat_loggers=[EngineStatistics], disable_log_stats=True)
    # Without the cache, every request reads the same variables dozens of times. vLLM's processes enable it themselves.
    envs.enable_envs_cache()
    return llm, args


def _patch_server(config: VllmConfig) -> frozenset[str]:
    """Apply the patches of modules in this process, and return the optional patches that apply in all processes."""
    patches = applied(config.additional_config)
    if patches != OPTIONAL:
        logger.info("Patches of vLLM that are off: %s", ", ".join(sorted(OPTIONAL - patches)))
    config.scheduler_config.scheduler_cls = SCHEDULER
    omit_nulls()
    return patches
