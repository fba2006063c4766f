"""An engine ends with the server that started it, however that ends."""

import functools
import multiprocessing
import os
import threading
from multiprocessing.connection import wait

_EVERY_S = 0.5


@functools.cache
def end_with_server() -> None:
    """End this process once the one that started it has ended, or the fork server that it came from; say it once.

    vLLM's engine waits for ever for a server that was killed, with all of its memory; and without the fork server
    nobody would learn how the engine ends. (The kernel's own way, ``PR_SET_PDEATHSIG``, goes by the thread that started
    the process, which may end long before its server.) Its workers notice by themselves that the engine is gone.
    """
    if server := multiprocessing.parent_process():
        watching = threading.Thread(target=_watch, args=(server.sentinel, os.getppid()), name="tenora-parent")
        watching.daemon = True
        watching.start()


def _watch(server: int, parent: int) -> None:
    while os.getppid() == parent and not wait([server], _EVERY_S):
        pass
    # Nobody is left to tell, and nothing to bring in order: memory, slots and caches end with the process.
    os._exit(1)
