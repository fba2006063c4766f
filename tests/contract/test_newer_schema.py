"""Older server on the schema of a newer release.

It starts if the migrations only added things. Otherwise it states the reason.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select

from app.database.migrate import (
    alembic_config,
    downgrade,
    head_revision,
    migration_connection,
    oldest_revision,
    upgrade,
)
from app.database.session import Database
from app.database.tables import tenants
from app.domain.errors import RegistryUnavailable
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)

CANNOT_USE = r"is at revision 900\d, which this release cannot use. Start the newer release"

#: First migration that declares whether it is purely additive.
FIRST = "0014"
MIGRATION = """
import sqlalchemy as sa
from alembic import op
revision = "{revision}"
down_revision = "{down_revision}"
branch_labels = depends_on = None
{additive}

def upgrade():
    op.add_column("tenants", sa.Column("c{revision}", sa.Integer))

def downgrade():
    op.drop_column("tenants", "c{revision}")
"""

Release = Callable[..., None]


@pytest.fixture
def newer_release(registry_url: str, tmp_path: Path) -> Release:
    """Migrate the registry as a newer release would; each further migration declares whether it is additive."""

    def migrate(*additive: bool | None) -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(ScriptDirectory.from_config(alembic_config()).dir, folder)
        revision = head_revision()
        for number, one in enumerate(additive, start=9001):
            said = "" if one is None else f"additive = {one}"
            text = MIGRATION.format(revision=number, down_revision=revision, additive=said)
            (folder / "versions" / f"{number}_x.py").write_text(text)
            revision = str(number)
        config = alembic_config()
        config.set_main_option("script_location", str(folder))
        with migration_connection(registry_url) as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    return migrate


@pytest.mark.parametrize("additive", [(True,), (True, True)])
async def test_a_server_starts_on_a_schema_that_only_grew(
    node: Node, registry_url: str, newer_release: Release, additive: tuple[bool, ...]
) -> None:
    assert await node.database.check() == head_revision()
    newer_release(*additive)
    newest = str(9000 + len(additive))
    assert await node.database.check() == newest
    await node.database.check_serving()
    await node.tenants.create("pricing", actor="cli")
    assert upgrade(registry_url) == newest, "what a newer release made stays"
    async with node.database.read() as connection:
        assert (await connection.scalars(select(tenants.c.slug))).all() == ["pricing"]


@pytest.mark.parametrize("additive", [(False,), (None,), (True, False), (False, True)])
async def test_a_server_does_not_start_on_a_schema_that_changed(
    node: Node, registry_url: str, newer_release: Release, additive: tuple[bool | None, ...]
) -> None:
    newer_release(*additive)
    with pytest.raises(RegistryUnavailable, match=CANNOT_USE):
        await node.database.check()
    with pytest.raises(RegistryUnavailable, match=CANNOT_USE):
        upgrade(registry_url)


async def test_a_schema_that_is_no_registrys(empty_url: str) -> None:
    with migration_connection(empty_url) as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('abc')")
    database = Database(empty_url)
    try:
        with pytest.raises(RegistryUnavailable, match="is at revision abc, which this release cannot use"):
            await database.check()
        with pytest.raises(RegistryUnavailable, match="is at revision abc, which this release cannot use"):
            upgrade(empty_url)
    finally:
        await database.close()


def test_a_downgrade_takes_the_word_back(registry_url: str) -> None:
    def oldest() -> str | None:
        with migration_connection(registry_url) as connection:
            return oldest_revision(connection)

    before = oldest()
    assert before is not None
    downgrade(registry_url)
    assert oldest() is None
    upgrade(registry_url)
    assert oldest() == before


def migrations() -> Iterator[Any]:
    """Migrations that declare whether they are additive, oldest first."""
    script = ScriptDirectory.from_config(alembic_config())
    return (one for one in reversed(list(script.walk_revisions())) if one.revision >= FIRST)


def test_every_migration_says_whether_it_only_added() -> None:
    for one in migrations():
        assert isinstance(getattr(one.module, "additive", None), bool), one.revision


def columns(connection: Connection) -> dict[tuple[str, str], tuple[str, bool]]:
    """Return the type of each column and whether it is optional on insert."""
    inspector = inspect(connection)
    return {
        (table, column["name"]): (
            str(column["type"]),
            column["nullable"] or column["default"] is not None or column.get("autoincrement") is True,
        )
        for table in inspector.get_table_names()
        for column in inspector.get_columns(table)
    }


def rules(connection: Connection) -> set[str]:
    """Return the constraints that rows must satisfy, apart from columns."""
    inspector = inspect(connection)
    found = set()
    for table in inspector.get_table_names():
        for kind in (inspector.get_unique_constraints, inspector.get_foreign_keys, inspector.get_check_constraints):
            found |= {f"{table}: {one}" for one in map(str, kind(table))}
        found |= {
            f"{table}: {one['name']} {one['column_names']}" for one in inspector.get_indexes(table) if one["unique"]
        }
    return found


def test_a_migration_that_says_so_only_added(empty_url: str) -> None:
    config = alembic_config()
    with migration_connection(empty_url) as connection:
        config.attributes["connection"] = connection
        for one in migrations():
            command.upgrade(config, one.down_revision)
            before, old_rules = columns(connection), rules(connection)
            command.upgrade(config, one.revision)
            if not one.module.additive:
                continue
            after, tables = columns(connection), {table for table, _ in before}
            assert {name: after.get(name) for name in before} == before, one.revision
            required = [name for name, (_, free) in after.items() if name not in before and not free]
            assert not [name for name in required if name[0] in tables], one.revision
            new_rules = {rule for rule in rules(connection) - old_rules if rule.partition(":")[0] in tables}
            assert not new_rules, one.revision
