"""Fork server that has imported vLLM: engine processes are forked from it, so a dead engine is back in seconds.

By default vLLM starts its processes one after the other, each with a new interpreter that imports vLLM first. Or it
forks them from this process, if it sees no reason against it. They would then inherit this process's connections,
secrets and the locks of its threads. The fork server is a separate process. It ends when this process and the engines
have ended. If it dies, the engine dies with it, and the next engine starts another fork server.
See docs/decisions/0017-fork-server-for-engines.md.

``tenora server serve`` starts the fork server early, so that both processes import vLLM in parallel. vLLM prepares the
environment of an engine later. If a variable then differs that matters at process start or at import, the fork server
is restarted.

Fork server and engines run in a separate session. A terminal, systemd or ``timeout`` ends a server with a signal to its
whole process group. The engine must outlive the requests that the server still answers.
"""

import importlib.util
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from app.engine.vllm.requirements import compile_nothing, is_cpu_build
from app.engine.vllm.worker.parent_watch import end_with_server
from app.settings import may_hold_secret

#: Signals that a terminal, systemd or ``timeout`` sends to a server's whole process group.
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# fork_session comes first: until it has run, signals to the server's group reach the fork server too.
_PRELOADED = ["app.engine.vllm.worker.fork_session", "__main__", "app.engine.vllm.worker.fork_preload"]

#: Variables that matter at process start or at import, so that a running fork server cannot adopt them.
_READ_ONCE = ("LD_PRELOAD", "TORCHDYNAMO_DISABLE", "TORCHINDUCTOR_CPP_DYNAMIC_THREADS")
#: Their values in the running fork server.
_started_with: Mapping[str, str | None] = {}


class _EngineProcess(ForkServerProcess):
    """Engine process with the environment of the process that starts it, except secrets."""

    def start(self) -> None:
        self._environment = {name: value for name, value in os.environ.items() if not _is_secret(name)}
        _run_fork_server()
        super().start()

    def run(self) -> None:
        # vLLM may wait for its server long before it starts to watch it.
        end_with_server()
        if os.getppid() != os.getsid(0):
            # The fork server leads this session. It was killed before the watch began.
            os._exit(1)
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class EngineContext(ForkServerContext):
    """Multiprocessing context from which vLLM starts engine processes."""

    Process = _EngineProcess


def start_ahead() -> None:
    """Start the fork server before this process imports vLLM, with the environment that vLLM will prepare.

    A CPU engine gets more variables, a GPU engine none.
    """
    before = dict(os.environ)
    if is_cpu_build():
        compile_nothing(os.environ)
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
    """Start a fork server in this process's environment, or keep the one that fits."""
    global _started_with
    environment = {name: os.environ.get(name) for name in _READ_ONCE}
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None and environment != _started_with:
        end_engines()
        server._stop()
    _started_with = environment
    multiprocessing.set_forkserver_preload(_PRELOADED)
    with secrets_hidden():
        # Start the resource tracker now: its start unblocks signals.
        resource_tracker.ensure_running()
        # The fork server inherits the blocked signals. It drops pending ones and unblocks them once it has a session.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def secrets_hidden() -> Iterator[None]:
    """Hide secrets from programs that are started in the block with the environment of this process.

    They inherit the environment of the C library, and only this one changes. Other threads read ``os.environ``, for
    example boto3 its credentials.
    """
    secrets = {name: value for name, value in os.environ.items() if _is_secret(name)}
    for name in secrets:
        os.unsetenv(name)
    try:
        yield
    finally:
        for name, value in secrets.items():
            os.putenv(name, value)


def _is_secret(name: str) -> bool:
    # HF_TOKEN stays: vLLM may fetch the base model with it.
    return name.startswith("AWS_") or may_hold_secret(name)


def _openmp_of_torch() -> str | None:
    """Find torch's bundled OpenMP library, which vLLM preloads into the processes of a CPU engine."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    folder = Path(torch.origin).parent
    libraries = (
        path for place in (folder.parent / "torch.libs", folder / "lib") for path in place.glob("libgomp*.so*")
    )
    return next(map(str, libraries), None)


def end_engines() -> None:
    """Kill the fork server, if there is one. Its engines detect that and end, even half-started ones."""
    server: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is not None:
        # The pid cannot be reused: the next start reaps this child process.
        os.kill(server, signal.SIGKILL)
