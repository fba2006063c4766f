"""Engine replicas of a fleet on this machine, and a server in front of them."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.support.postgres import running_postgres
from tests.support.server import START_S, TENORA, Server, environment, processes_of, serving, set_up, together, until

_STOP_S = 60
_LEFT_S = 30


@contextlib.contextmanager
def running_fleet(home: Path, base: Path, **settings: Any) -> Iterator[Server]:
    """Run two replicas on PostgreSQL, and a server in front of them. All of them end with the block."""
    with running_postgres() as database:
        settings = settings | together(home, database) | {"TENORA_RAY__ADDRESS": "local"}
        admin_key = set_up(home, base, **settings)
        with replicas(home, base, settings), serving(home, base, admin_key, **settings) as server:
            until(lambda: states(home, base, settings) == ["ready"] * 2, START_S)
            yield server


@contextlib.contextmanager
def replicas(home: Path, base: Path, settings: dict[str, Any], number: str = "2") -> Iterator[None]:
    """Start replicas, ``MIN:MAX`` or a number, and stop them with all their processes at the end."""
    with (home / "engines.log").open("wb") as log:
        process = subprocess.Popen(
            [TENORA, "engines", "up", "--replicas", number],
            env=environment(home, base, **settings),
            stdout=log,
            stderr=log,
        )
        try:
            record = home / "engines" / "cluster.json"
            until(lambda: record.exists() or process.poll() is not None, START_S)
            assert process.poll() is None, (home / "engines.log").read_text()
            yield
            subprocess.run([TENORA, "engines", "down"], env=environment(home, base, **settings), check=True)
            assert process.wait(_STOP_S) == 0
        finally:
            _, left = psutil.wait_procs(processes_of(home), timeout=_LEFT_S)
            for one in (process, *left):
                with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                    one.kill()
            process.wait(_LEFT_S)
        assert left == []


def status(home: Path, base: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of ``tenora engines status``."""
    command = [TENORA, "engines", "status", "--json"]
    done = subprocess.run(command, env=environment(home, base, **settings), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("["), f"{done.stdout}\n{done.stderr}"
    return list(json.loads(done.stdout))


def states(home: Path, base: Path, settings: dict[str, Any]) -> list[str]:
    return [row["state"] for row in status(home, base, settings)]


def engine_of(replica: int) -> psutil.Process:
    """Return an engine process of a replica, by the replica's process id."""
    children = psutil.Process(replica).children(recursive=True)
    return next(child for child in reversed(children) if "VLLM::" in " ".join(child.cmdline()))
