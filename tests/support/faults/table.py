"""Write the table of faults in docs/operations.md from reports: ``python -m tests.support.faults.table FILE``."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from deploy.docs.reference import DOCS, replace_block
from tests.support.faults.report import FAULTS

PAGE, MARKER = DOCS / "operations.md", "faults"
HEAD = "| fault | what clients see | recovery |\n|---|---|---|\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="the file that FAULTS_REPORT named")
    recoveries: dict[str, list[float]] = {}
    for line in parser.parse_args().report.read_text().splitlines():
        measured = json.loads(line)
        recoveries.setdefault(measured["fault"], []).append(measured["recovery_s"])
    PAGE.write_text(replace_block(PAGE.read_text(), MARKER, table(recoveries)))


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
