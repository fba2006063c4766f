"""Executor inside the engine core: process of the worker and CPU affinity of its threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from vllm.config import ParallelConfig, VllmConfig

from app.engine.vllm.worker.in_core_executor import fits_in_core

#: Runs in a separate interpreter, because pytest's process already has threads.
ASK = """
import os, threading
from multiprocessing import Process
import torch
import app.engine.vllm.worker.fork_preload
from app.engine.vllm.worker.in_core_executor import _bind, _threads

def work(processors):
    _bind(processors)
    assert torch.get_num_threads() == len(processors)
    before = _threads()
    torch.ones(2**22).sum()
    assert _threads() == before, "its threads are there already"
    bound = {processor for thread in before if len(on := os.sched_getaffinity(thread)) == 1 for processor in on}
    assert bound == set(processors), bound
    assert os.sched_getaffinity(0) == {processors[0]}

if __name__ == "__main__":
    # A fork takes one thread along: a lock that another one holds would be held for ever. (BLAS stops its own.)
    assert threading.active_count() == 1
    assert not torch.cuda.is_initialized()
    # The last: as many threads as a large machine has.
    for processors in (PROCESSORS[-1:], PROCESSORS[-2:], (PROCESSORS * 96)[:96]):
        worker = Process(target=work, args=(processors,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
"""


@pytest.mark.slow
def test_a_forked_engine_has_one_thread_per_processor(tmp_path: Path) -> None:
    script = tmp_path / "ask.py"
    script.write_text(ASK.replace("PROCESSORS", str(sorted(os.sched_getaffinity(0)))))
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr


def test_several_workers_have_processes_of_their_own() -> None:
    assert fits_in_core(VllmConfig())
    config = VllmConfig()
    config.parallel_config = ParallelConfig(tensor_parallel_size=2, distributed_executor_backend="mp")
    assert not fits_in_core(config)


@pytest.mark.parametrize("library", ["/usr/lib/libiomp5.so", "/usr/lib/libomp.so.5"])
def test_a_worker_with_another_openmp_has_a_process_of_its_own(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", f"/usr/lib/libtcmalloc.so:{library}")
    assert not fits_in_core(VllmConfig())
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libtcmalloc.so")
    assert fits_in_core(VllmConfig())
