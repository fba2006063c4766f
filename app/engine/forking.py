"""Engine processes come from a fork server that has imported vLLM: an engine that died is back in seconds.

Left to itself vLLM starts them one after the other with an interpreter each, and each imports for twelve seconds
before it does anything; or, where it finds no reason against it, it forks them from this process, with its connections,
its secrets and the locks of its threads. The fork server is a process of its own. It starts with the first engine, in
the environment that vLLM has made ready for one, and ends when this process and the engines have ended. If it dies, the
engine dies with it, and the next one starts another.

Both are in a session of their own. Whoever ends a server sends a signal to its whole process group (a terminal,
systemd, ``timeout``), and the engine must outlive the requests that the server still answers.
"""

import multiprocessing
import os
import signal
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess

from app.engine.orphans import end_with_server

#: What a terminal, systemd or ``timeout`` sends to a server's whole process group.
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# The session first: until then signals to the server's group reach the fork server too.
_PRELOADED = ["app.engine.session", "__main__", "app.engine.preloaded"]


class _EngineProcess(ForkServerProcess):
    """With the environment of who starts it, as if it had come from there."""

    def start(self) -> None:
        multiprocessing.set_forkserver_preload(_PRELOADED)
        self._environment = dict(os.environ)
        # Its own start would let the signals through again.
        resource_tracker.ensure_running()
        # Inherited by the fork server, which drops what has come and lets them through once it has a session.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        super().start()

    def run(self) -> None:
        # vLLM may be waiting for its server long before it makes what watches that.
        end_with_server()
        if os.getppid() != os.getsid(0):
            # The fork server, whose session this is, was killed before there was a watch.
            os._exit(1)
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class EngineContext(ForkServerContext):
    """What vLLM gets for the context of multiprocessing that it starts engines from."""

    Process = _EngineProcess


def end_engines() -> None:
    """Kill the fork server, if there is one; engines that came from it notice and end, also half-started ones."""
    server: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is not None:
        # It is this process's child and is reaped when the next one starts: the id is nobody else's.
        os.kill(server, signal.SIGKILL)
