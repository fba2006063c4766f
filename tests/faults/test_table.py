"""The README's table of faults lists exactly the faults that are tested here."""

import re
from pathlib import Path

from tests.faults.report import FAULTS
from tests.faults.table import BEGIN, END, HEAD, README, recovery


def test_the_readme_says_what_clients_see_of_each_fault() -> None:
    table = README.read_text().split(BEGIN)[1].split(END)[0]
    assert table.startswith(HEAD)
    rows = [row.split(" | ") for row in table.removeprefix(HEAD).splitlines()]
    assert {row[0].removeprefix("| "): row[1] for row in rows} == FAULTS


def test_every_fault_has_its_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [fault for fault in FAULTS if len(re.findall(f'"{fault}"', tests)) != 1] == []


def test_recoveries_are_summed_up() -> None:
    assert recovery([3.0, 1.0, 2.04]) == "2.0 s (1.0 to 3.0, 3 runs)"
    assert recovery([0.0, 0.01]) == "at once (2 runs)"
    assert recovery([]) == "not measured"
