"""Workload ``gateway``: cost of an engine replica, against the engine in the server's process.

It runs the closed loop of :mod:`app.lab.bench.overhead` against two Tenora servers in turn: one with its engine, and
one in front of a replica of Ray Serve with the same engine. The CPU is that of the API process, which is the gateway.
"""

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.console import Console

from app.lab.bench import models, overhead, replicas, report, rivals
from app.lab.bench.overhead import ADAPTER, Round, Size

REPLICA, IN_PROCESS = "replica", "in process"
FULL = Size(5, {1: 30, 16: 160})
QUICK = Size(1, {1: 10})


def run(home: Path, *, out: Path | None, quick: bool, console: Console, base: Path | None = None) -> Path:
    """Run the benchmark, print its tables and write a JSON file. The arguments are those of ``overhead``.

    Returns:
        Path of the JSON file.

    Raises:
        app.domain.errors.EngineUnavailable: Ray is not installed.
        ServerFailed, LoadError
    """
    size = QUICK if quick else FULL
    home = home.resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    base, adapter, settings = overhead.prepare(home, base, console)
    adapters = {ADAPTER: adapter}
    with tempfile.TemporaryDirectory(dir=home) as folder, ExitStack() as stack:
        console.print("starting a replica and both servers")
        start = stack.enter_context(
            replicas.fleet(base, adapters, home=home, folder=Path(folder) / "fleet", count=1, settings=settings)
        )
        pair = (
            stack.enter_context(start(REPLICA)),
            dataclasses.replace(
                stack.enter_context(
                    rivals.tenora(base, adapters, home=home, folder=Path(folder) / "tenora", settings=settings)
                ),
                name=IN_PROCESS,
            ),
        )
        rounds = overhead.measure(pair, size, models.vocabulary(base), console)
    machine = report.environment()
    content = {
        "workload": "gateway",
        **machine,
        **overhead.described(size, settings),
        "rounds": [asdict(one) for one in rounds],
    }
    path = out or home / f"gateway-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    report.write(path, content)
    overhead.show(rounds, size, report.describe(machine))
    for concurrency in size.requests:
        costs = [f"{name} {token_cpu_ms(rounds, name, concurrency):.3f}" for name in (REPLICA, IN_PROCESS)]
        sys.stdout.write(f"API CPU for each streamed token at concurrency {concurrency}, ms: {', '.join(costs)}\n")
    return path


def token_cpu_ms(rounds: Sequence[Round], name: str, concurrency: int) -> float:
    """Milliseconds of CPU for each streamed token: what a streamed answer costs beyond a whole one of its length."""
    streamed, whole = (
        median(
            1000 * one.api_cpu_s / one.samples.output_tokens
            for one in rounds
            if (one.server, one.concurrency, one.streamed) == (name, concurrency, kind)
        )
        for kind in (True, False)
    )
    return streamed - whole
