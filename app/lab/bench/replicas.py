"""Engine replicas under benchmark (``tenora engines up``), and servers in front of them, on one registry."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType

from app.lab.bench import rivals, servers
from app.lab.bench.servers import Server, ServerFailed
from app.ray.cluster import started_on, stop
from app.ray.library import require_ray

_START_S, _STOP_S, _POLL_S = 600, 90, 0.5
#: Line of `tenora engines up` once all replicas run.
_STARTED = b"The engine replicas answer"
_NONE: Mapping[str, str] = MappingProxyType({})

#: Start of a server in front of the replicas, from its name, its module and variables of its environment.
Start = Callable[..., AbstractContextManager[Server]]


@contextmanager
def fleet(
    base: Path,
    adapters: Mapping[str, Path],
    *,
    home: Path,
    folder: Path,
    count: int,
    settings: Mapping[str, str] = _NONE,
    on_published: Callable[[], None] = lambda: None,
) -> Iterator[Start]:
    """Run engine replicas, and yield a function that runs a server in front of them. One server may run at a time.

    Args:
        base: folder of the base model.
        adapters: folder by adapter name.
        home: folder that keeps published adapters for the next fleet.
        folder: folder of the fleet for its HOME and its logs.
        count: number of replicas.
        settings: ``TENORA_*`` without those of the model.
        on_published: callback after each newly published adapter.

    Raises:
        app.domain.errors.EngineUnavailable: Ray is not installed.
        ServerFailed: the replicas, or a server, did not become ready.
        tenora_client.transport.Refused: the server refused an adapter.
    """
    require_ray()
    site = rivals.publish(base, adapters, home=home, folder=folder, settings=settings, on_published=on_published)
    env = servers.environment(**site.environment, TENORA_HOME=str(folder / "home"))
    with _replicas(folder, env, count):
        environment = site.environment | {"TENORA_RAY__ADDRESS": "local"}

        @contextmanager
        def start(
            name: str, *, module: str = "tenora_client", variables: Mapping[str, str] = _NONE
        ) -> Iterator[Server]:
            with rivals.serving(folder, {**environment, **variables}, servers.free_port(), module) as server:
                yield dataclasses.replace(site.of(server), name=name)

        yield start


@contextmanager
def _replicas(folder: Path, env: Mapping[str, str], count: int) -> Iterator[None]:
    log, home = folder / "engines.log", folder / "home"
    command = [sys.executable, "-m", "tenora_client", "engines", "up", "--replicas", str(count)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=dict(env), stdout=output, stderr=subprocess.STDOUT, process_group=0)
    try:
        deadline = time.monotonic() + _START_S
        while started_on(home) is None or _STARTED not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"The engine replicas could not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(_POLL_S)
        yield
    finally:
        with contextlib.suppress(TimeoutError):
            stop(home)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
