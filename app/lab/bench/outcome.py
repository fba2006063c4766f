"""Results of rounds of two sides: tables, a plot, and the JSON file with every sample."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from app.lab.bench import plots, report, rivals
from app.lab.bench.pairs import SIDES, Round, Setup
from app.lab.bench.plots import Panel, Series
from app.lab.bench.report import Metric, Spread
from app.lab.bench.timeline import Served


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rounds of a workload.

    Attributes:
        details: options of the measurement, for the JSON file.
        parts: parts of the workload with the metrics of their tables.
    """

    workload: str
    setup: Setup
    details: Mapping[str, Any]
    parts: Sequence[tuple[str, Mapping[str, Metric]]]
    rounds: Sequence[Round]

    def keep(self, home: Path, out: Path | None, panels: Sequence[Panel]) -> Path:
        """Print the tables to stdout, write the JSON file with the plot next to it, and return the JSON file's path."""
        machine = report.environment()
        path = out or home / f"{self.workload}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
        report.write(path, {"workload": self.workload, **machine, **self._content()})
        # A pipe has no width, and the tables need this one.
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        console.print(f"{self.workload}: {report.describe(machine)}", soft_wrap=True)
        console.print("medians (smallest to largest round), median of the rounds' own ratios")
        for part, metrics in self.parts:
            console.print(table(part, self.rounds, part, metrics))
        plots.draw(path.with_suffix(".png"), self.workload, panels)
        return path

    def _content(self) -> dict[str, Any]:
        setup = self.setup
        return {
            **self.details,
            "base": str(setup.base),
            "adapters": {name: str(path) for name, path in setup.adapters.items()},
            "tenora": {"serve": "tenora server serve", "settings": setup.settings},
            "vllm": {"serve": f"python -m {rivals.VLLM_MODULE}", "arguments": setup.vllm_arguments},
            "rounds": [asdict(one) for one in self.rounds],
        }


def without_gaps(served: Iterable[Served]) -> list[Served]:
    """Drop the inter-token gaps of samples, where they number millions."""
    return [replace(one, sample=replace(one.sample, gaps_ms=[])) for one in served]


def spreads(rounds: Iterable[Round], side: str, part: str) -> dict[str, Spread]:
    """Spread of each metric of a part over its rounds. A round may lack some metrics."""
    return report.summarise([one.figures for one in rounds if (one.server, one.part) == (side, part)])


def paired(rounds: Iterable[Round], part: str, name: str) -> list[float]:
    """Ratio of Tenora's metric to vLLM's by round, for rounds with both."""
    values = {(one.server, one.number): one.figures.get(name) for one in rounds if one.part == part}
    pairs = [(ours, values.get(("vllm", number))) for (side, number), ours in values.items() if side == "tenora"]
    return [ours / theirs for ours, theirs in pairs if ours is not None and theirs]


def by_round(rounds: Sequence[Round], part: str, names: Mapping[str, str], title: str, label: str) -> Panel:
    """Plot metrics over the rounds.

    Args:
        names: legend suffix after the server's name by metric, empty for the name alone.
        label: label of the y axis.
    """
    series: list[Series] = []
    for side in SIDES:
        for name, suffix in names.items():
            matching = [one for one in rounds if (one.server, one.part) == (side, part) and name in one.figures]
            if matching:
                values = [one.figures[name] for one in matching]
                series.append(Series(f"{side} {suffix}".strip(), [one.number for one in matching], values))
    return Panel(title, "round", label, series, log_y=True)


def table(title: str, rounds: Sequence[Round], part: str, metrics: Mapping[str, Metric]) -> Table:
    """Table of both sides' medians (smallest to largest), and of the median over the rounds of their ratio."""
    result = Table("", *SIDES, " / ".join(SIDES), title=title, title_justify="left")
    ours, theirs = (spreads(rounds, side, part) for side in SIDES)
    for name, metric in metrics.items():
        if name in ours or name in theirs:
            ratios = paired(rounds, part, name)
            quotient = f"{median(ratios):.3f}" if ratios else "-"
            result.add_row(metric.label, *(_cell(side.get(name), metric) for side in (ours, theirs)), quotient)
    return result


def _cell(value: Spread | None, metric: Metric) -> str:
    return "-" if value is None else report.spread(value, metric.digits)
