"""Executor for a single CPU worker inside the engine core's process, as for a single GPU.

vLLM gives a CPU's worker a separate process, because it binds OpenMP threads by variables that are read at process
start. Core and worker then exchange every step through shared memory, which both poll without a pause. On a small
machine the polling takes CPU time from the API process. Threads can be bound while they run, so one process is enough.
See docs/decisions/0018-cpu-worker-in-the-core-process.md.
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

#: Switch interval of the interpreter, in seconds. Python's default of 5 ms is half a step. The core's socket threads
#: need the interpreter several times for each request, and the steps release it only while torch computes.
_SWITCH_S = 1e-4


def fits_in_core(config: VllmConfig) -> bool:
    """Return whether one CPU worker, with torch's bundled OpenMP, does all of this engine's work.

    Another OpenMP library, preloaded by an operator, may not survive a fork.
    """
    alone = config.parallel_config.world_size_across_dp == 1
    return current_platform.is_cpu() and alone and not re.search("libi?omp", os.environ.get("LD_PRELOAD", ""))


class CoreExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's in-process executor, with the threads that run the steps bound to their cores."""

    def _init_executor(self) -> None:
        sys.setswitchinterval(_SWITCH_S)
        everywhere, processors = os.sched_getaffinity(0), _processors(self.vllm_config)
        if processors:
            _bind(processors)
        super()._init_executor()
        # The core's own threads start next and inherit the affinity. On this thread's core they would wait for steps.
        os.sched_setaffinity(0, everywhere)
        self.driver_worker.worker.tenora_processors = frozenset(processors[:1])


def _processors(config: VllmConfig) -> list[int]:
    """Cores that vLLM binds the worker's threads to; empty if it was told to bind none."""
    manager = OMPProcessManager(config)
    return [] if manager.skip_setup else list(manager.cpu_lists[0])


def _bind(processors: list[int]) -> None:
    """Bind one OpenMP thread to each of these cores, this thread to the first."""
    torch.set_num_threads(len(processors))
    before = _threads()
    # OpenMP creates its threads at the first parallel work. torch gives each thread at least 2**15 elements.
    torch.zeros(len(processors) * 2**16).add_(1)
    for thread, processor in zip([0, *sorted(_threads() - before)], processors, strict=True):
        os.sched_setaffinity(thread, {processor})


def _threads() -> set[int]:
    return {int(thread.name) for thread in Path("/proc/self/task").iterdir()}
