"""What engines are forked from."""

import os
import subprocess
import sys
from pathlib import Path

#: In an interpreter of its own: pytest's has threads.
ASK = """
import os, threading
from multiprocessing import Process
import torch
from app.engine.preloaded import _bind, _threads

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


def test_a_forked_worker_has_a_thread_on_each_of_its_processors_and_no_other_of_python(tmp_path: Path) -> None:
    script = tmp_path / "ask.py"
    script.write_text(ASK.replace("PROCESSORS", str(sorted(os.sched_getaffinity(0)))))
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
