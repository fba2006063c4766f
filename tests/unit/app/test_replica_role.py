"""Rights of an engine replica's database role, against the schema of this release."""

import pytest

from app.database.replica_role import GRANTED, WITHHELD, WITHHELD_COLUMNS, grant_statements
from app.database.tables import metadata


def test_every_table_and_column_is_decided() -> None:
    assert GRANTED.keys() | WITHHELD == metadata.tables.keys()
    assert not GRANTED.keys() & WITHHELD
    for table, privileges in GRANTED.items():
        columns = set(metadata.tables[table].columns.keys())
        read = columns if privileges.read is None else set(privileges.read)
        assert read | WITHHELD_COLUMNS.get(table, frozenset()) == columns, table
        assert not read & WITHHELD_COLUMNS.get(table, frozenset()), table
        assert {*privileges.insert, *privileges.update} <= columns, table


@pytest.mark.parametrize("name", ["", "public", "Upper", "a b", 'a"; DROP TABLE keys; --', "x" * 64])
def test_a_strange_name_of_a_role_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a plain name"):
        grant_statements(name)
