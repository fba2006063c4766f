"""Real engine replicas of ``tenora engines up``, for tests."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.support.server import START_S, TENORA, Server, environment, processes_of, until


@contextlib.contextmanager
def replicas(home: Path, base: Path, settings: dict[str, Any], number: str = "2") -> Iterator[None]:
    """Start real replicas, and stop them with all their processes at the end."""
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
            assert process.wait(60) == 0
        finally:
            _, left = psutil.wait_procs(processes_of(home), timeout=30)
            for one in (process, *left):
                with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                    one.kill()
            process.wait(30)
        assert left == []


def status(server: Server, base: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    command = [TENORA, "engines", "status", "--json"]
    variables = environment(server.home, base, **settings)
    done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    return list(json.loads(done.stdout))
