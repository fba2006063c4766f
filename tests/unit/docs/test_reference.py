"""The generated tables of docs/ match the code."""

import pytest

from app.settings import setting_names
from deploy.docs.reference import TABLES, Table, block, command_tree, errors, replace_block, settings
from deploy.docs.remedies import REMEDIES
from tests.support.faults.report import FAULTS
from tests.support.faults.table import HEAD, MARKER, PAGE


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.marker)
def test_the_page_has_the_table_that_the_code_gives(table: Table) -> None:
    assert table.written() == table.content(), f"docs/{table.page} is out of date. Run `make docs`."


def test_every_setting_has_one_row() -> None:
    rows = [line.split("`")[1] for line in settings().splitlines() if line.startswith("| `")]
    assert tuple(sorted(rows)) == setting_names()


def test_every_error_code_has_a_remedy_and_none_is_left() -> None:
    codes = {line.split("`")[1] for line in errors().splitlines() if line.startswith("| `")}
    assert codes == REMEDIES.keys()


def test_the_tables_have_the_rows_that_people_look_for() -> None:
    assert {
        "tenora server serve",
        "tenora adapters push",
        "tenora server store adopt",
        "tenora verify",
    } <= command_tree().keys()
    assert "| `invalid_api_key` | 401 | `authentication_error` |" in errors()
    assert "| `internal_error` | 500 | `server_error` |" in errors()


def test_a_block_is_replaced_between_its_markers_only() -> None:
    page = "a\n<!-- x -->\nold\n<!-- /x -->\nold\n"
    assert replace_block(page, "x", "new\n\n") == "a\n<!-- x -->\nnew\n<!-- /x -->\nold\n"
    with pytest.raises(ValueError, match="0 blocks"):
        block(page, "y")


def test_the_table_of_faults_has_the_faults_that_are_tested() -> None:
    table = block(PAGE.read_text(), MARKER)
    assert table.startswith(HEAD)
    rows = [row.split(" | ") for row in table.removeprefix(HEAD).splitlines()]
    assert {row[0].removeprefix("| "): row[1] for row in rows} == FAULTS
