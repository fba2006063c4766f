"""Grid of the workload ``adapters``: its cells, their results, and the report."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from app.lab.bench import plots, report
from app.lab.bench.open_loop import NOT_SENT, Run
from app.lab.bench.plots import Panel, Series
from app.lab.bench.report import Spread
from app.lab.bench.workload import Arrival
from app.settings import QueueSettings

#: Values of ``max_lora_rank`` that vLLM allows.
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_RIVALS = ("vllm", "peft", "base")
#: Console width for a pipe, in characters.
_WIDTH = 230
#: Metrics in the tables with their titles.
_SHOWN = {
    "requests_per_s": "requests/s",
    "attainment": "attainment",
    "longest_wait_s": "longest wait, s",
    "of_bound": "of its bound",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """Point of the grid: number of adapters, alpha of the power law, load in percent of the capacity."""

    adapters: int
    alpha: float
    load: int

    @property
    def title(self) -> str:
        skew = "uniform" if self.alpha == 1 else f"alpha {self.alpha:g}"
        return f"n = {self.adapters}, {skew}, {self.load}%"


@dataclass(frozen=True, slots=True)
class Options:
    """Grid and measurement options.

    Attributes:
        adapters: numbers of adapters (n).
        alphas: alphas of the power law.
        loads: requests per second, in percent of vLLM's capacity with one adapter.
        slots: number of LoRA slots on both sides. ``auto`` means the number that Tenora chooses, for vLLM too.
        seconds: seconds of arrivals per cell.
        rounds: rounds per server and cell, on fresh servers.
        ranks: ranks of the adapters, round robin.
        rivals: any of ``vllm``, ``peft`` and ``base``. vLLM always runs, since it defines the capacity.
        host_adapters: adapters in vLLM's host memory. None means twice the slots, or four times from 64 slots.
        cv: coefficient of variation of the gaps between arrivals.
        tenants: number of tenants that own the adapters, round robin.
        settings: further ``TENORA_*`` of Tenora's server. Engine arguments among them apply to vLLM too.
        seed: seed of adapters, requests and orders.
        overload_s: seconds of arrivals in the capacity measurement.
    """

    adapters: tuple[int, ...] = (1, 8, 32, 200)
    alphas: tuple[float, ...] = (0.3, 1.0)
    loads: tuple[int, ...] = (70, 120)
    slots: str = "4"
    seconds: float = 60.0
    rounds: int = 5
    ranks: tuple[int, ...] = (8,)
    rivals: tuple[str, ...] = ("vllm",)
    host_adapters: int | None = None
    cv: float = 1.0
    tenants: int = 20
    settings: Mapping[str, str] = field(default_factory=dict)
    seed: int = 2026
    overload_s: float = 5.0

    def __post_init__(self) -> None:
        if not (self.slots == "auto" or self.slots.isdecimal()):
            raise ValueError(f"--slots is {self.slots!r}. Write auto or a number.")
        if unknown := sorted(set(self.rivals) - set(_RIVALS)):
            raise ValueError(f"--rivals has {', '.join(unknown)}. Choose from {', '.join(_RIVALS)}.")
        if wrong := [rank for rank in self.ranks if not 1 <= rank <= RANKS[-1]]:
            raise ValueError(f"--ranks has {wrong[0]}. Write numbers from 1 to {RANKS[-1]}.")
        if min(self.adapters) < 1:
            raise ValueError(f"--n has {min(self.adapters)}. Write numbers of 1 or more.")
        if min((*self.alphas, *self.loads)) <= 0:
            raise ValueError(f"--alpha or --load has {min((*self.alphas, *self.loads))}. Write numbers above 0.")

    @property
    def max_age_s(self) -> float:
        """Maximum age: seconds that an adapter may wait before a slot holder must make room for it."""
        return float(self.settings.get("TENORA_QUEUE__MAX_AGE_S", QueueSettings().max_age_s))

    def quick(self) -> "Options":
        """Reduce the grid to a smoke test, which is not a result."""
        return replace(self, adapters=(1, 8), alphas=(1.0,), loads=(70,), seconds=8.0, rounds=1)

    def cells(self) -> list[Cell]:
        """Cells of the grid. With one adapter the power law has no effect, so alpha is 1."""
        return [
            Cell(adapters, alpha, load)
            for adapters in self.adapters
            for alpha in (self.alphas if adapters > 1 else (1.0,))
            for load in self.loads
        ]


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of one cell on one server in one round.

    Attributes:
        capacity: requests per second that vLLM answered with one adapter in this round.
        rate: requests per second sent.
        api_cpu_s: CPU seconds of the API process.
        peak_bytes: peak resident memory of the server's processes so far. Shared pages count in each process.
        tiers: Tenora's hits, misses and evictions since its start, in the form of ``GET /admin/engine``.
        samples: samples of all requests in columns. See :func:`columns`.
    """

    server: str
    cell: Cell
    round: int
    capacity: float
    rate: float
    metrics: dict[str, float]
    api_cpu_s: float
    peak_bytes: int
    tiers: list[dict[str, Any]]
    samples: dict[str, Any]


def columns(requests: Sequence[Arrival], run: Run) -> dict[str, Any]:
    """Compact raw samples for the JSON file: tokens, and times in whole milliseconds since the cell's start.

    ``gap`` is the longest time between two tokens of the request. ``why`` has the reasons of failed requests.
    """
    samples = run.samples
    return {
        "adapter": [one.adapter for one in requests],
        "input": [len(one.prompt) for one in requests],
        "output": [one.output_tokens for one in requests],
        "due": [round(1000 * one.at) for one in requests],
        "sent": [_ms(sample.sent) for sample in samples],
        "first": [_ms(sample.first) for sample in samples],
        "end": [_ms(sample.end) for sample in samples],
        "gap": [round(max(sample.gaps_ms, default=0)) for sample in samples],
        "why": {index: sample.why for index, sample in enumerate(samples) if sample.why and sample.why != NOT_SENT},
        "wall_s": run.wall_s,
        "generator_cpu_s": run.cpu_s,
    }


def show(measured: Sequence[Measured], cells: Sequence[Cell], machine: str, png: Path) -> None:
    """Print the tables to stdout and draw the plot."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    rounds = max(one.round for one in measured)
    capacities = Spread.of([one.capacity for one in measured])
    console.print(machine, soft_wrap=True)
    console.print(
        f"medians of {rounds} (smallest to largest), ratios of medians; vLLM's capacity with one adapter: "
        f"{report.spread(capacities, 1)} requests/s",
        soft_wrap=True,
    )
    spreads = summaries(measured)
    console.print(_against(spreads, cells, "vllm"))
    for rival in ("peft", "base"):
        if any((rival, cell) in spreads for cell in cells):
            console.print(_against(spreads, cells, rival))
    ratios = [quotient for cell in cells if (quotient := throughput_ratio(spreads, cell)) is not None]
    if ratios:
        console.print(f"throughput, Tenora / vLLM: {median(ratios):.2f} in the median cell, {min(ratios):.2f} at least")
    plots.draw(png, "Workload adapters", _panels(spreads, cells))


def summaries(measured: Sequence[Measured]) -> dict[tuple[str, Cell], dict[str, Spread]]:
    """Summarise the metrics over the rounds, by server and cell."""
    rounds: dict[tuple[str, Cell], list[Mapping[str, float]]] = {}
    for measurement in measured:
        rounds.setdefault((measurement.server, measurement.cell), []).append(measurement.metrics)
    return {key: report.summarise(metrics) for key, metrics in rounds.items()}


def throughput_ratio(
    spreads: Mapping[tuple[str, Cell], Mapping[str, Spread]], cell: Cell, rival: str = "vllm"
) -> float | None:
    """Ratio of Tenora's throughput to the rival's in one cell, None if the rival answered nothing."""
    return report.ratio(spreads["tenora", cell]["requests_per_s"], spreads[rival, cell]["requests_per_s"])


def _against(spreads: Mapping[tuple[str, Cell], Mapping[str, Spread]], cells: Sequence[Cell], rival: str) -> Table:
    table = Table(title=f"tenora, then {rival}: median (smallest to largest)", title_justify="left")
    table.add_column("cell", no_wrap=True)
    for name, title in _SHOWN.items():
        table.add_column(f"{title}\ntenora", no_wrap=True)
        table.add_column(f"\n{rival}", no_wrap=True)
        if name == "requests_per_s":
            table.add_column("\nratio", no_wrap=True)
    for cell in cells:
        row = [cell.title]
        for name in _SHOWN:
            row += [_cell(spreads[side, cell], name) for side in ("tenora", rival)]
            if name == "requests_per_s":
                quotient = throughput_ratio(spreads, cell, rival)
                row.append("-" if quotient is None else f"{quotient:.2f}")
        table.add_row(*row)
    return table


def _cell(metrics: Mapping[str, Spread], name: str) -> str:
    if name not in metrics:
        return "-"
    value = metrics[name]
    return f"{value.median:.2f} ({value.low:.2f}-{value.high:.2f})"


def _panels(spreads: Mapping[tuple[str, Cell], Mapping[str, Spread]], cells: Sequence[Cell]) -> list[Panel]:
    """Panels of throughput and attainment, with one column per load and skew."""
    kinds = sorted({(cell.load, cell.alpha) for cell in cells if cell.adapters > 1} or {(cells[0].load, 1.0)})
    rows = (("requests_per_s", "requests/s"), ("attainment", "attainment"))
    return [
        Panel(
            title=f"{load}% of capacity, {'uniform' if alpha == 1 else f'alpha {alpha:g}'}",
            x="adapters",
            y=label,
            series=[
                series
                for name in dict.fromkeys(server for server, _ in spreads)
                if (series := _series(spreads, [c for c in cells if _belongs(c, load, alpha)], name, metric)).x
            ],
            log_x=True,
        )
        for metric, label in rows
        for load, alpha in kinds
    ]


def _belongs(cell: Cell, load: int, alpha: float) -> bool:
    return cell.load == load and (cell.alpha == alpha or cell.adapters == 1)


def _series(
    spreads: Mapping[tuple[str, Cell], Mapping[str, Spread]], cells: Sequence[Cell], name: str, metric: str
) -> Series:
    points = [(cell.adapters, spreads[name, cell][metric]) for cell in cells if metric in spreads.get((name, cell), {})]
    return Series(
        name,
        [float(adapters) for adapters, _ in points],
        [value.median for _, value in points],
        [value.low for _, value in points],
        [value.high for _, value in points],
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(1000 * seconds)
