"""A single CPU worker lives in the engine's core, as a single GPU's does.

vLLM gives a CPU's worker a process of its own, because it binds OpenMP's threads by variables that are read when a
process starts. Core and worker then tell each other of every step through memory that both look at without a pause: on
two processors, of which the steps have one, that took most of the other, from the API process too. Threads can be bound
while they run, so one process is enough.
"""

import os
import re
import sys
from pathlib import Path

import torch
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.v1.executor.uniproc_executor import UniProcExecutor

#: So long a thread may keep the interpreter from another one. Python's 5 ms are half a step, and the core's threads for
#: sockets ask for it several times for each request, where the steps let go of it only while torch computes: with 64
#: requests at a time a tenth more of them were served than with 5 ms.
_SWITCH_S = 1e-4


def fits_in_core(config: VllmConfig) -> bool:
    """Whether this engine's work is done by one CPU worker, with the OpenMP that torch brings along.

    Another one, which an operator put before it, may not bear to be forked.
    """
    alone = config.parallel_config.world_size_across_dp == 1
    return current_platform.is_cpu() and alone and not re.search("libi?omp", os.environ.get("LD_PRELOAD", ""))


class CoreExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's executor for a worker in its own process, with the steps' threads bound to their processors."""

    def _init_executor(self) -> None:
        sys.setswitchinterval(_SWITCH_S)
        everywhere, processors = os.sched_getaffinity(0), _processors(self.vllm_config)
        if processors:
            _bind(processors)
        super()._init_executor()
        # The core starts its own threads next, and they inherit: on this one's processor they would wait for its steps.
        os.sched_setaffinity(0, everywhere)
        self.driver_worker.worker.tenora_processors = frozenset(processors[:1])


def _processors(config: VllmConfig) -> list[int]:
    """Those that vLLM wants to bind the worker's threads to; none if it was told to bind none."""
    manager = OMPProcessManager(config)
    return [] if manager.skip_setup else list(manager.cpu_lists[0])


def _bind(processors: list[int]) -> None:
    """Have a thread of OpenMP on each of these processors, the first of them this one."""
    torch.set_num_threads(len(processors))
    before = _threads()
    # The first work for all threads makes them: torch gives each of them 2**15 numbers or more.
    torch.zeros(len(processors) * 2**16).add_(1)
    for thread, processor in zip([0, *sorted(_threads() - before)], processors, strict=True):
        os.sched_setaffinity(thread, {processor})


def _threads() -> set[int]:
    return {int(thread.name) for thread in Path("/proc/self/task").iterdir()}
