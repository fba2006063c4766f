"""Bringing a registry's schema to the newest revision (Alembic), safe when several processes start at once."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError

from app.database.urls import SQLITE_BUSY_MS, parse_url
from app.errors import RegistryUnavailable

_ROOT = Path(__file__).resolve().parents[2]

# Any fixed number that nothing else in the same database locks.
_ADVISORY_LOCK = 7_305_790_114


def alembic_config() -> Config:
    return Config(_ROOT / "alembic.ini")


def head_revision() -> str | None:
    """The newest revision that this release knows."""
    return ScriptDirectory.from_config(alembic_config()).get_current_head()


def earlier_revisions() -> frozenset[str | None]:
    """Those that this release's migrations lead from; None: no schema at all."""
    script = ScriptDirectory.from_config(alembic_config())
    head = script.get_current_head()
    return frozenset({None, *(one.revision for one in script.walk_revisions() if one.revision != head)})


def upgrade(url: str) -> None:
    """Create or upgrade the schema; blocks. All of it happens, or nothing.

    Raises:
        RegistryUnavailable: the database does not answer.
        ValueError: the URL is not one that the registry supports.
    """
    _migrate(url, lambda config: command.upgrade(config, "head"))


def downgrade(url: str) -> None:
    """Drop the whole schema with everything in it; blocks.

    Raises:
        RegistryUnavailable, ValueError
    """
    _migrate(url, lambda config: command.downgrade(config, "base"))


def _migrate(url: str, migrate: Callable[[Config], None]) -> None:
    try:
        with migration_connection(url) as connection:
            config = alembic_config()
            config.attributes["connection"] = connection
            migrate(config)
    except OperationalError as error:
        raise RegistryUnavailable("the registry's database does not answer", retry_after=1) from error


@contextmanager
def migration_connection(url: str) -> Iterator[Connection]:
    """A connection in one transaction that no second migration can enter; committed at the end."""
    engine = _engine(url)
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
            yield connection
    finally:
        engine.dispose()


def _engine(url: str) -> Engine:
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return create_engine(parsed, connect_args={"connect_timeout": 5})
    path = Path(str(parsed.database))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    engine = create_engine(parsed.set(drivername="sqlite"))
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # Without this the driver commits before every DDL statement, and a failed migration stays half done.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={SQLITE_BUSY_MS}")
    # WAL stays with the file; readers then never wait for the writer.
    connection.execute("PRAGMA journal_mode=WAL")
