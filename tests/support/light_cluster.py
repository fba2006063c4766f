"""Clusters of light replicas for tests, and an engine of a gateway on them."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from app.engine.port import Endpoint, EngineRequest
from app.ray import cluster
from app.ray.engine import RayEngine
from app.settings import Settings
from tests.support.light_processes import clean_environment
from tests.support.server import START_S, until

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def light_head(
    home: Path, replicas: str, kind: str = "LightReplica", **ray: object
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the process that holds a cluster with light replicas.

    Args:
        kind: class of :mod:`tests.support.light_fleet`.
        ray: settings ``TENORA_RAY__*``.
    """
    variables = os.environ | {f"TENORA_RAY__{name.upper()}": str(value) for name, value in ray.items()}
    (home / "deployed").unlink(missing_ok=True)
    with (home / "log").open("wb") as log:
        command = [sys.executable, "-m", "tests.support.light_fleet", str(home), replicas, kind]
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log)
    try:
        until(lambda: (home / "deployed").exists() or process.poll() is not None, START_S)
        assert process.poll() is None, (home / "log").read_text()
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def light_cluster(home: Path, replicas: str, kind: str = "LightReplica", **ray: object) -> Iterator[Settings]:
    """Run a cluster with light replicas, and end it with all its processes."""
    with light_head(home, replicas, kind, **ray) as process:
        yield Settings(home=home, ray={"address": "local"})
        left = psutil.Process(process.pid).children(recursive=True)
        assert cluster.stop(home)
        assert process.wait(30) == 0
        assert psutil.wait_procs(left, timeout=30)[1] == []


@contextlib.asynccontextmanager
async def light_engine(settings: Settings, **arguments: Any) -> AsyncIterator[RayEngine]:
    """Start the engine of a gateway in this process."""
    import ray
    from ray.serve import context as serve_context

    # To connect sets variables of Ray, such as the path of the token, which the next cluster must not get.
    with patch.dict(os.environ, clean_environment(), clear=True):
        engine = RayEngine(lambda: cluster.open_transport(settings), start_s=START_S, **arguments)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()
            ray.shutdown()
            # Serve would use the controller of this cluster for the next one too.
            serve_context._set_global_client(None)


def light_request(name: str, tenant: str = "a", deadline_s: float | None = None, **body: Any) -> EngineRequest:
    name = f"{name}-{os.getpid()}"
    return EngineRequest(name, Endpoint.CHAT, body, "m", None, "salt", "hi", tenant=tenant, deadline_s=deadline_s)


async def eventually(reached: Callable[[], bool], limit_s: float = START_S) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(limit_s):
        while not reached():
            await asyncio.sleep(0.1)
