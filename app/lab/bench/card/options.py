"""Options of a check, and what a part of it returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from app.demo.train import ensure_demo
from app.lab.bench import models
from app.lab.bench.big_base import one_b_base

_SEED = 42


@dataclass(frozen=True, slots=True)
class Options:
    """Parts of the check, and their size.

    Attributes:
        device: ``cpu`` or ``cuda``.
        quick: a small base, short prompts and low concurrency: shows that every part runs, measures nothing.
        home: folder that keeps bases and adapters between runs.
        base: folder of a Llama; None: the demo's base for a quick check, else a random one of 1B shape.
    """

    device: str
    quick: bool
    home: Path
    base: Path | None

    def the_base(self) -> Path:
        if self.base is not None:
            return self.base
        return ensure_demo(self.home, None).base if self.quick else one_b_base(self.home)

    def adapters(self, ranks: Sequence[int], count: int) -> list[Path]:
        """Random adapters in PEFT's format, their ranks in turn."""
        return models.adapters(self.home, self.the_base(), count, ranks, _SEED)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one part.

    Attributes:
        summary: one line for the last table.
        figures: everything that was measured, for the JSON.
        tables: for the screen.
        failures: a sentence for each; empty if the part passed.
    """

    summary: str
    figures: dict[str, Any]
    tables: Sequence[Table]
    failures: Sequence[str] = ()
