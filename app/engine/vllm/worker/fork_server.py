"""Engine processes come from a fork server that has imported vLLM: an engine that died is back in seconds.

Left to itself vLLM starts them one after the other with an interpreter each, and each imports for twelve seconds
before it does anything; or, where it finds no reason against it, it forks them from this process, with its connections,
its secrets and the locks of its threads. The fork server is a process of its own. It ends when this process and the
engines have ended. If it dies, the engine dies with it, and the next one starts another.

``tenora serve`` starts the fork server ahead, so that both processes import vLLM at the same time. vLLM prepares the
environment of an engine later. If a variable then differs that counts while a process starts or imports, the fork
server is started again.

Both are in a session of their own. Whoever ends a server sends a signal to its whole process group (a terminal,
systemd, ``timeout``), and the engine must outlive the requests that the server still answers.
"""

import importlib.util
import multiprocessing
import os
import signal
from collections.abc import Mapping
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from app.engine.vllm.requirements import is_cpu_build
from app.engine.vllm.worker.parent_watch import end_with_server

#: What a terminal, systemd or ``timeout`` sends to a server's whole process group.
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# The session first: until then signals to the server's group reach the fork server too.
_PRELOADED = ["app.engine.vllm.worker.fork_session", "__main__", "app.engine.vllm.worker.fork_preload"]

#: Variables that count while a process starts or imports, so that a fork server cannot take them over later.
_READ_ONCE = ("LD_PRELOAD", "TORCHDYNAMO_DISABLE", "TORCHINDUCTOR_CPP_DYNAMIC_THREADS")
#: Their values in the fork server that runs.
_started_with: Mapping[str, str | None] = {}


class _EngineProcess(ForkServerProcess):
    """With the environment of who starts it, as if it had come from there."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        _run_fork_server()
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


def start_ahead() -> None:
    """Start the fork server before this process imports vLLM, in the environment that vLLM will prepare.

    vLLM adds these variables for a CPU's engine, and none of them for a GPU's.
    """
    before = dict(os.environ)
    if is_cpu_build():
        os.environ |= _cpu_variables(before)
    try:
        _run_fork_server()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _cpu_variables(environment: Mapping[str, str]) -> dict[str, str]:
    preloaded = environment.get("LD_PRELOAD", "")
    openmp = None if "gomp" in preloaded else _openmp_of_torch()
    libraries = ":".join(filter(None, (preloaded, openmp)))
    return {"TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1"} | ({"LD_PRELOAD": libraries} if libraries else {})


def _run_fork_server() -> None:
    """Have a fork server that runs in this process's environment."""
    global _started_with
    wanted = {name: os.environ.get(name) for name in _READ_ONCE}
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None and wanted != _started_with:
        end_engines()
        server._stop()
    _started_with = wanted
    multiprocessing.set_forkserver_preload(_PRELOADED)
    # Its own start would let the signals through again.
    resource_tracker.ensure_running()
    # Inherited by the fork server, which drops what has come and lets them through once it has a session.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _openmp_of_torch() -> str | None:
    """The OpenMP library that torch brings along, which vLLM preloads into the processes of a CPU's engine."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    folder = Path(torch.origin).parent
    found = (path for place in (folder.parent / "torch.libs", folder / "lib") for path in place.glob("libgomp*.so*"))
    return next(map(str, found), None)


def end_engines() -> None:
    """Kill the fork server, if there is one; engines that came from it notice and end, also half-started ones."""
    server: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is not None:
        # It is this process's child and is reaped when the next one starts: the id is nobody else's.
        os.kill(server, signal.SIGKILL)
