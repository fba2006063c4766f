"""Parent watch: an engine process exits when its server has ended, in any way."""

import functools
import multiprocessing
import os
import threading
from multiprocessing.connection import wait

_EVERY_S = 0.5


@functools.cache
def end_with_server() -> None:
    """Exit this process once the process that started it, or the fork server it came from, has ended. Idempotent.

    vLLM's engine waits forever for a server that was killed, and keeps all of its memory. Without the fork server, no
    process learns how the engine ends. ``PR_SET_PDEATHSIG`` is no alternative: it follows the thread that started the
    process, which may end long before the server. vLLM's workers detect by themselves that the engine is gone.
    """
    if server := multiprocessing.parent_process():
        parent = (server.sentinel, os.getppid())
        threading.Thread(target=_watch, args=parent, name="tenora-parent", daemon=True).start()


def _watch(server: int, parent: int) -> None:
    while os.getppid() == parent and not wait([server], _EVERY_S):
        pass
    # No process is left to notify, and there is nothing to clean up: memory, slots and caches end with the process.
    os._exit(1)
