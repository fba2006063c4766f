"""Cluster of light replicas in separate processes, and the ports on which they listen."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import psutil

from app.ray import cluster
from tests.support.server import START_S, until

ROOT = Path(__file__).parents[2]


class Listener(NamedTuple):
    """Port on which a process of Ray listens, with an address that reaches it."""

    process: str
    address: str
    port: int


def clean_environment() -> dict[str, str]:
    """Return the environment without settings of Ray and of Tenora."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TENORA_"))}


@contextmanager
def light_fleet(home: Path, variables: Mapping[str, str] = MappingProxyType({}), replicas: int = 2) -> Iterator[None]:
    """Run a cluster with light replicas, and check that it leaves no process behind."""
    environment = clean_environment() | dict(variables)
    with (home / "log").open("wb") as log:
        command = [sys.executable, "-m", "tests.support.light_fleet", str(home), str(replicas)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)
    try:
        until(lambda: (home / "deployed").exists() or process.poll() is not None, START_S)
        assert process.poll() is None, (home / "log").read_text()
        yield
        left = psutil.Process(process.pid).children(recursive=True)
        assert cluster.stop(home)
        assert process.wait(30) == 0
        assert psutil.wait_procs(left, timeout=30)[1] == []
    finally:
        process.kill()


def listeners(home: Path, host: str) -> list[Listener]:
    """Return each port on which a process of the cluster listens. Those on all interfaces are reached by the host."""
    started = cluster.started_on(home)
    assert started is not None
    found = []
    for process in (psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)):
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                address, port = connection.laddr
                reached = host if address in {"::", "0.0.0.0"} else address  # noqa: S104 - compared, not bound
                found.append(Listener(_name(process), reached, port))
    return found


def _name(process: psutil.Process) -> str:
    """Return Ray's title of a process, such as ``ray::ServeReplica:tenora:engine``, or the name of its script."""
    command = process.cmdline()
    title = command[0].split()[0]
    scripts = [Path(word).name for word in command[:4] if word.endswith(".py")]
    return scripts[0] if scripts and not title.startswith("ray::") else title
