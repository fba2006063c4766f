"""Workload ``adapters``: many adapters on few slots, Tenora against its rivals over a grid of cells.

Each round does this:

1. Start fresh servers.
2. Measure vLLM's capacity with one adapter.
3. Send each cell's requests to every server, in random order of cells and servers.

All cells of a round share its servers. Their order differs between rounds, and the report shows medians over rounds.
"""

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from app.lab.bench import models, open_loop, report, waits
from app.lab.bench.fleet import Fleet, shown_engine
from app.lab.bench.grid import Cell, Measured, Options, columns, show
from app.lab.bench.open_loop import Plan, Request, Run
from app.lab.bench.servers import Server
from app.lab.bench.workload import Arrival, Load, arrivals

#: Initial rate of the overload run in requests per second. It grows until the server clearly cannot keep up.
_OVERLOAD = 200.0
_WARMING = 8
#: Maximum wait for answers after the last arrival, in seconds. The naive server never catches up.
_DRAIN_S = 300.0
_NAIVE_DRAIN_S = 5.0


def run(home: Path, options: Options, *, out: Path | None, console: Console, base: Path | None = None) -> Path:
    """Run the benchmark, print its table to stdout and write a JSON file with a PNG next to it.

    Args:
        home: folder that keeps models and published adapters between runs.
        console: console for progress.
        base: folder of another base than the toy, served in its stored dtype.

    Returns:
        Path of the JSON file.

    Raises:
        ServerFailed, LoadError
    """
    home = home.resolve()  # the servers run in another folder
    if base is None:
        options = replace(options, settings={"TENORA_ENGINE__DTYPE": models.served_dtype()} | dict(options.settings))
    base = base.resolve() if base else models.toy_base(home)
    count = max(options.adapters)
    folders = models.adapters(home, base, count, options.ranks, options.seed)
    adapters = {f"adapter-{index:05d}": path for index, path in enumerate(folders)}
    path = out or home / f"adapters-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    machine = report.environment()
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory(dir=home) as folder, Progress(console=console, transient=True) as progress:
        fleet = Fleet(options, base, adapters, home=home, folder=Path(folder), progress=progress)
        grid = Grid(options, fleet.start, list(adapters), models.vocabulary(base), progress)
        for number in range(1, options.rounds + 1):
            measured += grid.round(number)
            content = {"workload": "adapters", **machine, "options": asdict(options), **fleet.settings}
            # Write after each round, so that a failure does not lose hours of results.
            report.write(path, content | {"rounds": [asdict(one) for one in measured]})
    show(measured, options.cells(), report.describe(machine), path.with_suffix(".png"))
    return path


class Grid:
    """Rounds of one run.

    Args:
        start: starts fresh servers, ``tenora`` and ``vllm`` among them. They live until the stack closes.
        names: names of the adapters.
        vocabulary: vocabulary size of the base.
    """

    def __init__(
        self,
        options: Options,
        start: Callable[[ExitStack, int], Mapping[str, Server]],
        names: Sequence[str],
        vocabulary: int,
        progress: Progress,
    ) -> None:
        self._options, self._start_servers, self._names = options, start, names
        self._vocabulary = vocabulary
        self._progress = progress
        self._task: TaskID = progress.add_task("", total=options.rounds * len(options.cells()))

    def round(self, number: int) -> Iterator[Measured]:
        """Start the servers, measure the capacity and run every cell on every server."""
        order = random.Random(f"{self._options.seed} {number}")  # noqa: S311 - the same order every time
        with ExitStack() as stack:
            self._tell(number, "starting the servers")
            servers = self._start_servers(stack, number)
            slots = int(shown_engine(servers["tenora"])["slots"]["total"])
            for server in servers.values():
                self._tell(number, f"warming up {server.name}")
                self._warm_up(server)
            self._tell(number, "capacity of vllm with one adapter")
            capacity = self._capacity(servers["vllm"], number)
            cells = self._options.cells()
            for cell in order.sample(cells, len(cells)):
                requests = self._requests(cell, capacity, number)
                for server in order.sample(list(servers.values()), len(servers)):
                    self._tell(number, f"{cell.title}, {server.name}")
                    yield self._measure(server, cell, number, capacity, requests, slots)
                self._progress.advance(self._task)

    def _warm_up(self, server: Server) -> None:
        """Warm up: request each adapter once, a few at a time, with prompts that no cell uses."""
        if server.name in {"peft", "base"}:
            return
        ids = random.Random(f"warm {self._options.seed}")  # noqa: S311 - the same prompts every time
        requests = [
            Request(
                0.0,
                server.model_for(name),
                server.headers_for(name),
                [ids.randrange(self._vocabulary) for _ in range(16)],
                8,
                after=index - _WARMING if index >= _WARMING else None,
            )
            for index, name in enumerate(self._names)
        ]
        open_loop.drive(Plan(server.port, requests))

    def _capacity(self, server: Server, number: int) -> float:
        """Measure the throughput with one adapter under overload, in requests per second."""
        rate = _OVERLOAD
        while True:
            load = Load(rate, self._options.overload_s, adapters=1)
            # Use a new seed each time: repeated prompts would hit the prefix cache.
            seed = (self._options.seed, number, int(rate))
            run = self._drive(server, arrivals(load, vocabulary=self._vocabulary, seed=seed), _DRAIN_S)
            requests_per_s = report.measure_open(run, [0] * load.requests)["requests_per_s"]
            if requests_per_s < 0.7 * rate:
                return requests_per_s
            rate *= 3

    def _requests(self, cell: Cell, capacity: float, number: int) -> list[Arrival]:
        options = self._options
        load = Load(cell.load / 100 * capacity, options.seconds, cell.adapters, alpha=cell.alpha, cv=options.cv)
        seed = (options.seed, number, cell.adapters, int(1000 * cell.alpha), cell.load)
        # Throughput depends on the time of the last arrival, so all cells of a load share their arrival times.
        gaps_seed = (options.seed, number, cell.load)
        return arrivals(load, vocabulary=self._vocabulary, seed=seed, gaps_seed=gaps_seed)

    def _measure(
        self, server: Server, cell: Cell, number: int, capacity: float, requests: Sequence[Arrival], slots: int
    ) -> Measured:
        before = server.cpu_s()
        run = self._drive(server, requests, _NAIVE_DRAIN_S if server.name == "peft" else _DRAIN_S)
        adapters = [one.adapter for one in requests]
        metrics = report.measure_open(run, adapters)
        sent = list(zip(run.samples, adapters, strict=True))
        metrics["of_bound"] = waits.of_bound(sent, slots, self._options.max_age_s)
        return Measured(
            server=server.name,
            cell=cell,
            round=number,
            capacity=capacity,
            rate=cell.load / 100 * capacity,
            metrics=metrics,
            api_cpu_s=server.cpu_s() - before,
            peak_bytes=server.peak_bytes(),
            tiers=shown_engine(server)["tiers"] if server.name == "tenora" else [],
            samples=columns(requests, run),
        )

    def _drive(self, server: Server, requests: Sequence[Arrival], drain_s: float) -> Run:
        names = [self._names[one.adapter] for one in requests]
        plan = [
            Request(one.at, server.model_for(name), server.headers_for(name), one.prompt, one.output_tokens)
            for one, name in zip(requests, names, strict=True)
        ]
        return open_loop.drive(Plan(server.port, plan, drain_s=drain_s))

    def _tell(self, number: int, text: str) -> None:
        self._progress.update(self._task, description=f"round {number}: {text}")
