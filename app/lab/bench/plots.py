"""Plots of benchmark results as PNG. matplotlib is imported on the first plot."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

#: Colours by server or routing policy, the same in every plot: Okabe and Ito's palette, which colour-blind readers can
#: tell apart.
_COLOURS = {
    "tenora": "#0072B2",
    "vllm": "#D55E00",
    "peft": "#999999",
    "base": "#009E73",
    "least loaded": "#D55E00",
    "round robin": "#999999",
    "power of two": "#009E73",
    "random": "#999999",
    "llm-d": "#CC79A7",
}


@dataclass(frozen=True, slots=True)
class Series:
    """One line: y over x, with the smallest and largest y if there are several rounds."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Attributes:
        x, y: labels of the axes with their units.
        marks: x positions of vertical lines, for example of a load.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    marks: Sequence[float] = field(default=())


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw the panels, one row per y label, and write them to ``path``. Without matplotlib, only log a warning."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        logger.warning("%s is not drawn, because matplotlib is not installed.", path.name)
        return

    rows = [[panel for panel in panels if panel.y == label] for label in dict.fromkeys(panel.y for panel in panels)]
    width = max(len(row) for row in rows)
    figure = Figure(figsize=(4.5 * width, 3.4 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for row, shown in enumerate(rows):
        for column, panel in enumerate(shown):
            _fill(figure.add_subplot(len(rows), width, row * width + column + 1), panel)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _fill(axes: Any, panel: Panel) -> None:
    names = list(_COLOURS)
    for series in sorted(panel.series, key=lambda one: names.index(one.name) if one.name in names else len(names)):
        colour = _COLOURS.get(series.name)
        axes.plot(series.x, series.y, marker="o", markersize=3, label=series.name, color=colour)
        if series.low:
            axes.fill_between(series.x, series.low, series.high, alpha=0.2, color=colour, linewidth=0)
    for mark in panel.marks:
        axes.axvline(mark, color="0.8", linewidth=0.8, zorder=0)
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    if panel.log_x:
        axes.set_xscale("log")
        places = sorted({x for series in panel.series for x in series.x})
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
    if panel.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
