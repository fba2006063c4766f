"""Write the README's table of faults from reports: ``python -m tests.faults.table FILE``, see README."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from tests.faults.report import FAULTS

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- faults -->\n", "<!-- /faults -->"
HEAD = "| fault | what clients see | recovery |\n|---|---|---|\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="what FAULTS_REPORT named")
    recoveries: dict[str, list[float]] = {}
    for line in parser.parse_args().report.read_text().splitlines():
        measured = json.loads(line)
        recoveries.setdefault(measured["fault"], []).append(measured["recovery_s"])
    before, rest = README.read_text().split(BEGIN)
    _, after = rest.split(END)
    README.write_text(before + BEGIN + table(recoveries) + END + after)


def table(recoveries: Mapping[str, Sequence[float]]) -> str:
    """Return the table in Markdown.

    Args:
        recoveries: fault -> seconds of each run.
    """
    return HEAD + "".join(
        f"| {fault} | {seen} | {recovery(recoveries.get(fault, ()))} |\n" for fault, seen in FAULTS.items()
    )


def recovery(seconds: Sequence[float]) -> str:
    """Return the median of some runs with their range, in seconds."""
    if not seconds:
        return "not measured"
    if max(seconds) < 0.05:
        return f"at once ({len(seconds)} runs)"
    return f"{median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f}, {len(seconds)} runs)"


if __name__ == "__main__":
    main()
