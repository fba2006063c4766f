"""Database errors are distinguished by their codes, on the real databases."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event, make_url, text

from app.database.session import Database
from app.database.troubles import RECENT_S, Cause, Troubles
from app.domain.errors import RegistryUnavailable
from tests.support.postgres import postgres_server
from tests.support.registry import Node, SettableClock, run_on_server

pytest_plugins = ("tests.support.registry_fixtures",)

FULL = "The registry's database has no room left, so nothing can be changed."


async def fill(database: Database) -> None:
    """Write until the database refuses."""
    async with database.write() as connection:
        await connection.execute(text("CREATE TABLE filler (content TEXT)"))
    while True:
        async with database.write() as connection:
            await connection.execute(text("INSERT INTO filler VALUES (:content)"), {"content": "x" * 100_000})


def limit_pages(database: Database) -> None:
    """Cap the size of SQLite's file; SQLite then reports the same error as on a full disk."""

    def limit(connection: object, _record: object) -> None:
        cursor = connection.cursor()  # type: ignore[attr-defined]
        cursor.execute("PRAGMA page_count")
        cursor.execute(f"PRAGMA max_page_count={cursor.fetchone()[0] + 50}")
        cursor.close()

    event.listen(database._writer.sync_engine, "connect", limit)


@pytest.mark.parametrize("database_kind", ["sqlite"])
async def test_a_full_sqlite_is_named(registry_url: str, caplog: pytest.LogCaptureFixture) -> None:
    database = Database(registry_url)
    limit_pages(database)
    assert database.troubles.changes is None
    with pytest.raises(RegistryUnavailable, match="has no room left, so nothing can be changed"):
        await fill(database)
    assert database.troubles.changes == FULL
    assert database.troubles.counts[Cause.DISK_FULL] == 1
    assert "database or disk is full" in caplog.text
    # Reads continue to work.
    await database.check_serving()
    await database.close()


@pytest.mark.parametrize("database_kind", ["sqlite"])
async def test_a_read_only_sqlite_is_named(registry_url: str) -> None:
    database = Database(registry_url)
    event.listen(database._writer.sync_engine, "connect", lambda one, _: one.execute("PRAGMA query_only=ON"))
    with pytest.raises(RegistryUnavailable, match="is read-only"):
        async with database.write() as connection:
            await connection.execute(text("CREATE TABLE more (number INTEGER)"))
    assert database.troubles.changes == "The registry's database is read-only, so nothing can be changed."
    await database.close()


@pytest.mark.parametrize("database_kind", ["sqlite"])
async def test_a_locked_sqlite_is_named(registry_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.database.session.SQLITE_BUSY_MS", 50)
    one, other = Database(registry_url), Database(registry_url)
    async with one.write() as connection:
        await connection.execute(text("SELECT 1"))
        with pytest.raises(RegistryUnavailable, match="is locked by another process"):
            async with other.write() as waiting:
                await waiting.execute(text("SELECT 1"))
    assert (other.troubles.counts[Cause.LOCKED], other.troubles.changes) == (1, None)
    await one.close()
    await other.close()


@pytest.mark.parametrize("database_kind", ["postgresql"])
async def test_a_read_only_postgresql_is_named(node: Node, registry_url: str, request: pytest.FixtureRequest) -> None:
    server, name = request.getfixturevalue("postgres_url"), make_url(registry_url).database
    run_on_server(server, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(RegistryUnavailable, match="is read-only"):
        await node.tenants.create("pricing", actor="cli")
    assert node.database.troubles.counts[Cause.READ_ONLY] == 1
    assert node.database.troubles.changes == "The registry's database is read-only, so nothing can be changed."


@pytest.mark.parametrize("database_kind", ["postgresql"])
async def test_a_full_postgresql_is_named(node: Node) -> None:
    """Raise PostgreSQL's error for a file that cannot grow.

    A real full disk would need root.
    """
    raised = "DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$"
    with pytest.raises(RegistryUnavailable, match="has no room left"):
        async with node.database.write() as connection:
            await connection.execute(text(raised))
    assert node.database.troubles.changes == FULL


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[str]:
    """PostgreSQL server with very few connections."""
    with postgres_server() as server:
        plain = server.url.replace("+psycopg", "")
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET max_connections = 6")
            connection.execute("CREATE ROLE guest LOGIN")
        server.stop("fast")
        server.start()
        yield server.url


async def test_a_postgresql_without_a_connection_left_is_named(small_server: str) -> None:
    guest = make_url(small_server).set(username="guest").render_as_string(hide_password=False)
    plain, held = guest.replace("+psycopg", ""), []
    try:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                held.append(psycopg.connect(plain))
        database = Database(guest)
        with pytest.raises(RegistryUnavailable, match="has no connection left for this server"):
            await database.check_serving()
        assert database.troubles.counts[Cause.TOO_MANY_CONNECTIONS] == 1
        await database.close()
    finally:
        for connection in held:
            connection.close()


def test_a_cause_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = SettableClock()
    troubles, full = Troubles(clock=clock.monotonic), psycopg.errors.DiskFull("could not extend file\nHINT: more")
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            troubles.note(full)
        assert len(caplog.records) == 1
        assert caplog.records[0].getMessage().endswith("could not extend file")
        clock.advance(RECENT_S - 1)
        assert troubles.changes == FULL
        clock.advance(2)
        assert troubles.changes is None
        clock.advance(30)
        troubles.note(full)
    assert len(caplog.records) == 2
    assert troubles.counts[Cause.DISK_FULL] == 101
