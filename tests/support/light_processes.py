"""Processes of a cluster of light replicas: their environment, and the ports on which they listen."""

import os
from pathlib import Path
from typing import NamedTuple

import psutil

from app.ray import cluster


class Listener(NamedTuple):
    """Port on which a process of Ray listens, with an address that reaches it."""

    process: str
    address: str
    port: int


def clean_environment() -> dict[str, str]:
    """Return the environment without settings of Ray and of Tenora."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TENORA_"))}


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
