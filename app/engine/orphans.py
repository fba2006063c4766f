"""An engine ends with the server that started it, however that ends."""

import os
import threading
import time

_EVERY_S = 0.5


def end_with_parent() -> None:
    """End this process soon after its parent has ended.

    vLLM's engine waits for ever for a server that was killed, with all of its memory. (The kernel's own way,
    ``PR_SET_PDEATHSIG``, goes by the thread that started the process, which may end long before its server.) Its
    workers notice by themselves that the engine is gone.
    """
    threading.Thread(target=_watch, args=(os.getppid(),), name="tenora-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_EVERY_S)
    # Nobody is left to tell, and nothing to bring in order: memory, slots and caches end with the process.
    os._exit(1)
