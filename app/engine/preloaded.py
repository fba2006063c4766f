"""What the fork server imports, once, for all engines that come from it; see app/engine/forking.py.

Nothing here may start a thread or open a device: neither would be there in a process that is forked.
"""

import gc
import os
import re
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path

import torch
import vllm.v1.engine.core
from vllm.platforms import current_platform
from vllm.utils.system_utils import set_process_title
from vllm.v1.executor import multiproc_executor


class _WorkerProcess(ForkProcess):
    """A CPU worker with its threads where vLLM wants them."""

    def run(self) -> None:
        if os.environ.get("VLLM_CPU_OMP_THREADS_BIND") != "nobind":
            # Written there by vLLM for an interpreter that is yet to start: libgomp reads it when it is loaded.
            named = os.environ.get("GOMP_CPU_AFFINITY") or os.environ["OMP_PLACES"]
            _bind([int(processor) for processor in re.findall(r"\d+", named)])
        super().run()


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


class _WorkerContext(ForkContext):
    Process = _WorkerProcess


# On a GPU no more than vLLM's own server has when it forks: models and kernels may open the card as they are imported.
if current_platform.is_cpu():
    import vllm.model_executor.models.llama
    import vllm.v1.worker.cpu_model_runner
    import vllm.v1.worker.cpu_worker  # noqa: F401

    import app.engine.worker  # noqa: F401

    # Another OpenMP than torch's, which an operator put before it, is told by other variables.
    if not re.search("libi?omp", os.environ.get("LD_PRELOAD", "")):
        multiproc_executor.get_mp_context = _WorkerContext

set_process_title("forkserver", prefix="tenora")
# The pages of these objects stay shared: a collection would write to every one of them.
gc.collect()
gc.freeze()
