"""Composition of the engine core's scheduler from vLLM's own and the parts that apply."""

import logging
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from app.engine.vllm.patches.ledger import OPTIONAL, applied
from app.engine.vllm.patches.zmq_wakeups import take_wakeups
from app.engine.vllm.scheduler.kv_zeroing import ZeroedBlocks
from app.engine.vllm.scheduler.preemption import PrioritySteps
from app.engine.vllm.scheduler.prefill_chunking import BoundedSteps, can_bound_steps
from app.engine.vllm.worker.parent_watch import end_with_server

logger = logging.getLogger(__name__)


def scheduler(*args: Any, vllm_config: VllmConfig, **kwargs: Any) -> Scheduler:
    """Create the scheduler. vLLM's core calls it, by its name in ``scheduler_cls``, as it would call the class.

    It is Tenora's first code in the core's process, so it also applies the other patches there.
    """
    end_with_server()
    patches = applied(vllm_config.additional_config)
    if "zmq_wakeups" in patches:
        take_wakeups()
    if patches != OPTIONAL:
        logger.info("Patches of vLLM that are off in the engine core: %s", ", ".join(sorted(OPTIONAL - patches)))
    return scheduler_class(vllm_config)(*args, vllm_config=vllm_config, **kwargs)


def scheduler_class(config: VllmConfig) -> type[Scheduler]:
    """Compose the class. Priorities select a step's sequences before their prompts are cut."""
    patches = applied(config.additional_config)
    parts: list[type[Scheduler]] = [ZeroedBlocks, PrioritySteps]
    if "prefill_chunking" in patches and can_bound_steps(config):
        parts.append(BoundedSteps)
    if config.scheduler_config.async_scheduling:
        parts.append(AsyncScheduler)
    return type("TenoraScheduler", tuple(parts), {})
