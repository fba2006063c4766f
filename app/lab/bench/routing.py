"""Workload ``routing``: loads and first tokens of a fleet under routing policies, over four traces of arrivals.

Each part measures all policies on the same arrivals and yields a :class:`Measured` for each trace, policy and round.
The part ``simulated`` runs the routing rule and the scheduler over simulated engines. Its results are deterministic.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from app.lab.bench import plots, report
from app.lab.bench.plots import Panel, Series
from app.lab.bench.report import Metric, Spread
from app.lab.simulator.fleet import FleetSimulation
from app.lab.simulator.machine import Machine
from app.lab.simulator.policies import POLICIES
from app.lab.simulator.traces import LENGTHS, TRACES, Trace

#: Policy and rival of the summary.
OURS, RIVAL = "tenora", "least loaded"

METRICS: Mapping[str, Metric] = {
    "copies": Metric("copies into slots", 0),
    "stages": Metric("loads from disk", 0),
    "fetches": Metric("fetches from the store", 0),
    "loading_s": Metric("loading, s", 0),
    "warm": Metric("requests without a load", 3),
    "ttft_p50_s": Metric("TTFT p50, s", 3),
    "ttft_p99_s": Metric("TTFT p99, s", 3),
    "refused": Metric("refused", 0),
    "imbalance": Metric("most loaded / mean", 2),
}

#: Console width for a pipe, in characters.
_WIDTH = 230

_HOST_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True)
class Options:
    """Fleet and load.

    Attributes:
        replicas: number of engines.
        gateways: number of gateways. Each knows its requests exactly, and those of others from reports only.
        slots: number of LoRA slots of an engine.
        window: maximum number of sequences in an engine.
        adapters: number of adapters.
        load: mean requests per second, in percent of the fleet's capacity with one adapter.
        seconds: length of the arrivals.
        rounds: rounds, each with another seed.
        traces: any of ``TRACES``.
        policies: any of ``POLICIES``.
    """

    replicas: int = 8
    gateways: int = 1
    slots: int = 16
    window: int = 64
    adapters: int = 400
    load: float = 30.0
    seconds: float = 60.0
    rounds: int = 5
    traces: tuple[str, ...] = tuple(TRACES)
    policies: tuple[str, ...] = tuple(POLICIES)
    seed: int = 2026

    def __post_init__(self) -> None:
        if unknown := [name for name in self.traces if name not in TRACES]:
            raise ValueError(f"--traces has {unknown[0]!r}. Choose from {', '.join(TRACES)}.")
        if unknown := [name for name in self.policies if name not in POLICIES]:
            raise ValueError(f"--policies has {unknown[0]!r}. Choose from {', '.join(POLICIES)}.")

    def quick(self) -> "Options":
        """Reduce to a smoke test, which is not a result."""
        return replace(self, seconds=5.0, rounds=1)

    @property
    def machine(self) -> Machine:
        return Machine(slots=self.slots, window=self.window, host_bytes=_HOST_BYTES)

    def trace(self, name: str, number: int) -> Trace:
        """Trace of a round."""
        mean = (sum(LENGTHS) - 1) / 2
        capacity = self.replicas * self.machine.costs.requests_per_s(self.window, mean, mean)
        return Trace(name, self.load / 100 * capacity, self.seconds, self.seed + number, adapters=self.adapters)


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of one policy on one trace in one round.

    Attributes:
        part: part of the benchmark that measured it.
        figures: values of ``METRICS`` and others.
    """

    part: str
    trace: str
    policy: str
    round: int
    figures: Mapping[str, float]


#: Part of the benchmark. Another one, such as real replicas, needs the same options and results.
Part = Callable[[Options, Progress], Iterator[Measured]]


def simulated(options: Options, progress: Progress) -> Iterator[Measured]:
    """Simulate each round, trace and policy."""
    for number in range(1, options.rounds + 1):
        for name in options.traces:
            trace = options.trace(name, number)
            for policy in options.policies:
                task = progress.add_task(f"round {number}, {name}, {policy}", total=trace.rate * trace.seconds)
                gateways = [POLICIES[policy](options.seed + gateway) for gateway in range(options.gateways)]
                simulation = FleetSimulation(trace, options.machine, options.replicas, gateways)
                outcome = simulation.run(partial(_advance, progress, task))
                progress.remove_task(task)
                yield Measured("simulated", name, policy, number, asdict(outcome))


def _advance(progress: Progress, task: TaskID, arrived: int) -> None:
    progress.update(task, completed=arrived)


PARTS: Mapping[str, Part] = {"simulated": simulated}


def run(home: Path, options: Options, *, out: Path | None, console: Console) -> Path:
    """Run all parts, print their tables to stdout and write a JSON file with a PNG next to it.

    Args:
        console: console for progress.

    Returns:
        Path of the JSON file.
    """
    path = out or home / f"routing-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    machine = report.environment()
    content = {"workload": "routing", **machine, "options": asdict(options), "machine": asdict(options.machine)}
    measured: list[Measured] = []
    with Progress(console=console, transient=True) as progress:
        for part in PARTS.values():
            for one in part(options, progress):
                measured.append(one)
                # Write after each measurement, so that a failure does not lose the others.
                report.write(path, content | {"rounds": [asdict(kept) for kept in measured]})
    show(measured, report.describe(machine), path.with_suffix(".png"))
    return path


def show(measured: Sequence[Measured], machine: str, png: Path) -> None:
    """Print the tables to stdout and draw the plot."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    console.print(machine, soft_wrap=True)
    spreads = summaries(measured)
    for part, trace in dict.fromkeys((part, trace) for part, trace, _ in spreads):
        console.print(_table(spreads, part, trace))
        if (saved := ratios(measured, part, trace)) is not None:
            copies, ttft = saved
            console.print(f"{OURS} / {RIVAL}: copies {copies:.2f}, TTFT p99 {ttft:.2f} (medians of the rounds)")
    plots.draw(png, "Workload routing: loads and first tokens by policy", _panels(spreads))


def summaries(measured: Sequence[Measured]) -> dict[tuple[str, str, str], dict[str, Spread]]:
    """Summarise the figures over the rounds, by part, trace and policy."""
    rounds: dict[tuple[str, str, str], list[Mapping[str, float]]] = {}
    for one in measured:
        rounds.setdefault((one.part, one.trace, one.policy), []).append(one.figures)
    return {key: report.summarise(figures) for key, figures in rounds.items()}


def ratios(measured: Sequence[Measured], part: str, trace: str) -> tuple[float, float] | None:
    """Median ratios of copies and TTFT p99, ours to least loaded; None if a round lacks one of them."""
    figures = {(one.policy, one.round): one.figures for one in measured if (one.part, one.trace) == (part, trace)}
    pairs = [(figures[OURS, number], figures.get((RIVAL, number))) for policy, number in figures if policy == OURS]
    quotients = [
        [ours[name] / theirs[name] for ours, theirs in pairs if theirs and theirs[name]]
        for name in ("copies", "ttft_p99_s")
    ]
    return (median(quotients[0]), median(quotients[1])) if all(quotients) else None


def _table(spreads: Mapping[tuple[str, str, str], Mapping[str, Spread]], part: str, trace: str) -> Table:
    policies = [policy for shown_part, shown_trace, policy in spreads if (shown_part, shown_trace) == (part, trace)]
    table = Table("", *policies, title=f"{part}, {trace}: median (smallest to largest)", title_justify="left")
    for name, metric in METRICS.items():
        cells = [report.spread(spreads[part, trace, policy][name], metric.digits) for policy in policies]
        table.add_row(metric.label, *cells)
    return table


def _panels(spreads: Mapping[tuple[str, str, str], Mapping[str, Spread]]) -> list[Panel]:
    """One panel for each trace: policies by copies and TTFT p99, where the lower left is best."""
    keys = list(dict.fromkeys((part, trace) for part, trace, _ in spreads))
    return [
        Panel(
            title=f"{part}, {trace}",
            x="copies into slots",
            y="TTFT p99, s",
            series=[
                Series(policy, [spread["copies"].median], [spread["ttft_p99_s"].median])
                for (shown_part, shown_trace, policy), spread in spreads.items()
                if (shown_part, shown_trace) == (part, trace)
            ],
            log_y=True,
        )
        for part, trace in keys
    ]
