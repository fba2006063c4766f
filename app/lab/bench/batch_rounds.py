"""Rounds of the workload ``batch``: their file, which a later run continues, and their table and plot."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from app.lab.bench import report
from app.lab.bench.batch_sides import BATCH
from app.lab.bench.plots import Panel, Series
from app.lab.bench.report import Metric
from app.lab.bench.timeline import NotMeasured

METRICS: Mapping[str, Metric] = {
    "lines_per_s": Metric("lines/s", 1),
    "seconds": Metric("seconds", 1),
    "validation_s": Metric("of them, validation of the lines", 0),
    "lines_s": Metric("of them, run of the lines", 0),
    "files_s": Metric("of them, result files", 0),
    "start_s": Metric("engine start, s", 1),
    "loads": Metric("adapter loads", 0),
    "api_cpu_ms": Metric("CPU time of the API process, or of the one that calls generate, per line, ms", 2),
    "engine_cpu_ms": Metric("CPU time of the engine's processes per line, ms", 2),
    "server_mib": Metric("peak memory of the engine's processes, MiB", 0),
    "client_mib": Metric("peak memory of the client, MiB", 0),
    "lost": Metric("lines lost", 0),
    "double": Metric("lines with two answers", 0),
    "charged_twice": Metric("lines charged twice", 0),
    "tokens_off": Metric("tokens charged without an answer", 0),
    "measured_adapters": Metric("adapters measured, others extrapolated", 0),
}
STREAM_METRICS: Mapping[str, Metric] = {
    "ttft_p50_ms": Metric("TTFT p50, ms", 1),
    "ttft_p99_ms": Metric("TTFT p99, ms", 1),
    "ttft_max_ms": Metric("TTFT max, ms", 1),
    "requests": Metric("interactive requests", 0),
    "lines_per_s": Metric("lines/s of the batch", 1),
    "lines_done": Metric("lines done in this time", 0),
}

#: Facts that may differ between the runs of one file.
_NOT_COMPARED = frozenset({"date", "changed_files", "rounds"})


@dataclass(frozen=True, slots=True)
class Round:
    """One side, or one part of the interactive workload, in one round.

    Attributes:
        figures: metrics by name.
        ttft_s: samples of an interactive part.
    """

    side: str
    number: int
    figures: Mapping[str, float]
    ttft_s: Sequence[float] = field(default=())


class RoundsFile:
    """JSON file of a measurement. It is written after each round of a side, so a later run continues it.

    Args:
        facts: machine, versions, commit and conditions of the measurement.

    Raises (constructor):
        NotMeasured: the file has rounds of another measurement.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self._path = path
        self._facts: dict[str, Any] = json.loads(json.dumps(facts))
        self.rounds: list[Round] = []
        if path.exists():
            self._continue(json.loads(path.read_text(encoding="utf-8")))

    def has(self, number: int, *sides: str) -> bool:
        """Return whether the file has all these sides of a round."""
        return {(side, number) for side in sides} <= {(one.side, one.number) for one in self.rounds}

    def add(self, *rounds: Round) -> None:
        """Add rounds, and write the file."""
        self.rounds += rounds
        report.write(self._path, {**self._facts, "rounds": list(map(asdict, self.rounds))})

    def _continue(self, kept: dict[str, Any]) -> None:
        compared = (kept.keys() | self._facts.keys()) - _NOT_COMPARED
        if other := sorted(name for name in compared if kept.get(name) != self._facts.get(name)):
            raise NotMeasured(
                f"{self._path} has rounds of another measurement: {', '.join(other)} differ. Give another --out."
            )
        self.rounds = [Round(**one) for one in kept["rounds"]]
        self._facts["date"] = kept["date"]


def table(rounds: Sequence[Round], metrics: Mapping[str, Metric]) -> Table:
    """Table with a column for each side, and the ratio of the first side's rate to that of each."""
    sides = list(dict.fromkeys(one.side for one in rounds))
    sums = {side: report.summarise([one.figures for one in rounds if one.side == side]) for side in sides}
    result = Table("", *sides)
    for name, metric in metrics.items():
        if any(name in sums[side] for side in sides):
            cells = (sums[side].get(name) for side in sides)
            result.add_row(
                metric.label, *("-" if cell is None else report.spread(cell, metric.digits) for cell in cells)
            )
    if BATCH in sides:
        result.add_row("lines/s of the batch over this", *(_ratio(rounds, side) for side in sides))
    return result


def ratios(rounds: Sequence[Round], side: str) -> list[float]:
    """Lines per second of the batch over those of a side, for each round with both."""
    rates = {(one.side, one.number): one.figures["lines_per_s"] for one in rounds if "lines_per_s" in one.figures}
    numbers = [number for of, number in rates if of == side and (BATCH, number) in rates]
    return [rates[BATCH, number] / rates[side, number] for number in numbers]


def _ratio(rounds: Sequence[Round], side: str) -> str:
    values = ratios(rounds, side)
    return f"{median(values):.2f}" if values else "-"


def panels(rounds: Sequence[Round]) -> list[Panel]:
    """Plot the rates by round, or the sorted first tokens of interactive requests."""
    sides = dict.fromkeys(one.side for one in rounds)
    if any(one.ttft_s for one in rounds):
        series = [_sorted_series(side, [s for one in rounds if one.side == side for s in one.ttft_s]) for side in sides]
        return [Panel("interactive requests", "share of requests, %", "TTFT, ms", series, log_y=True)]
    series = []
    for side in sides:
        rates = {
            one.number: one.figures["lines_per_s"]
            for one in rounds
            if one.side == side and "lines_per_s" in one.figures
        }
        if rates:
            series.append(Series(side, list(rates), list(rates.values())))
    return [Panel("throughput", "round", "lines/s", series, log_y=True)]


def _sorted_series(name: str, seconds: Sequence[float]) -> Series:
    shares = [100 * (place + 1) / len(seconds) for place in range(len(seconds))]
    return Series(name, shares, [1000 * value for value in sorted(seconds)])
