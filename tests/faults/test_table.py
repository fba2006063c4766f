"""The table of faults: one test for each fault, and sums over its runs."""

import re
from pathlib import Path

from tests.support.faults.report import FAULTS
from tests.support.faults.table import recovery


def test_every_fault_has_its_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [fault for fault in FAULTS if len(re.findall(f'"{fault}"', tests)) != 1] == []


def test_recoveries_are_summed_up() -> None:
    assert recovery([3.0, 1.0, 2.04]) == "2.0 s (1.0 to 3.0, 3 runs)"
    assert recovery([0.0, 0.01]) == "at once (2 runs)"
    assert recovery([]) == "not measured"
