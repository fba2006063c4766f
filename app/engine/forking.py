"""Engine processes come from a fork server that has imported vLLM: an engine that died is back in seconds.

Left to itself vLLM starts them one after the other with an interpreter each, and each imports for twelve seconds
before it does anything; or, where it finds no reason against it, it forks them from this process, with its connections,
its secrets and the locks of its threads. The fork server is a process of its own. It starts with the first engine, in
the environment that vLLM has made ready for one, and ends when this process and the engines have ended. If it dies, the
engine dies with it, and the next one starts another.
"""

import multiprocessing
import os
from multiprocessing.context import ForkServerContext, ForkServerProcess

_PRELOADED = ["__main__", "app.engine.preloaded"]


class _EngineProcess(ForkServerProcess):
    """With the environment of who starts it, as if it had come from there."""

    def start(self) -> None:
        multiprocessing.set_forkserver_preload(_PRELOADED)
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class EngineContext(ForkServerContext):
    """What vLLM gets for the context of multiprocessing that it starts engines from."""

    Process = _EngineProcess
