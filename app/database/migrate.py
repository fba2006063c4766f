"""Bringing a registry's schema to the newest revision (Alembic), safe when several processes start at once.

Each migration says whether it only added (``additive``): new tables, and columns that are null or have a default
in the database, under which servers of the release before read and write as they did. The registry keeps the oldest
revision whose servers can use the schema, so that an older server can judge a schema that it does not know.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, inspect, select, text, update
from sqlalchemy.exc import OperationalError

from app.database.tables import installation
from app.database.troubles import Cause, cause_of, unavailable
from app.database.urls import SQLITE_BUSY_MS, parse_url, place
from app.domain.errors import RegistryUnavailable

_ROOT = Path(__file__).resolve().parents[2]

# Any fixed number that nothing else in the same database locks.
_ADVISORY_LOCK = 7_305_790_114

#: The fact in ``installation``.
_OLDEST = "oldest_revision"


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


def oldest_revision(connection: Connection) -> str | None:
    """The oldest revision whose servers can use the schema as it is; None: it does not say."""
    if not inspect(connection).has_table(installation.name):
        return None
    return connection.scalar(select(installation.c.value).where(installation.c.name == _OLDEST))


def note_oldest(connection: Connection, script: ScriptDirectory, heads: Collection[str]) -> None:
    """Keep what :func:`oldest_revision` says, after a migration to these heads."""
    if not heads or not inspect(connection).has_table(installation.name):
        return
    (revision,) = heads
    one = script.get_revision(revision)
    while getattr(one.module, "additive", False) and isinstance(one.down_revision, str):
        one = script.get_revision(one.down_revision)
    changed = connection.execute(update(installation).where(installation.c.name == _OLDEST).values(value=one.revision))
    if not changed.rowcount:
        connection.execute(installation.insert().values(name=_OLDEST, value=one.revision))


def upgrade(url: str) -> str | None:
    """Create or upgrade the schema; blocks. All of it happens, or nothing. A newer one that this release can use stays.

    Returns:
        The revision that it has now.

    Raises:
        RegistryUnavailable: the database does not answer, or has a newer schema that this release cannot use.
        ValueError: the URL is not one that the registry supports.
    """
    head = head_revision()
    known = {head, *earlier_revisions()}
    found = head

    def migrate(connection: Connection, config: Config) -> None:
        nonlocal found
        there = MigrationContext.configure(connection).get_current_revision()
        _check_encoding(connection, new=there is None)
        if there in known:
            command.upgrade(config, "head")
        elif oldest_revision(connection) in known - {None}:
            found = there
        else:
            raise newer_than_this_release(there)

    _migrate(url, migrate)
    return found


def check_database(url: str) -> None:
    """Connect once, and say to an operator where the database is and why it cannot be used; blocks.

    Raises:
        RegistryUnavailable: it does not answer, or its encoding cannot hold every text.
        ValueError: the URL is not one that the registry supports.
    """
    if parse_url(url).get_backend_name() == "postgresql":
        with _told(url), _opened(url) as engine, engine.connect() as connection:
            _check_encoding(connection)


def newer_than_this_release(revision: str | None) -> RegistryUnavailable:
    """The schema has changed in a way that servers of this release cannot bear."""
    return RegistryUnavailable(
        f"the registry's schema is at {revision}, which a newer release made and this one cannot use. "
        "Start the newer release."
    )


def downgrade(url: str) -> None:
    """Drop the whole schema with everything in it; blocks.

    Raises:
        RegistryUnavailable, ValueError
    """
    _migrate(url, lambda _, config: command.downgrade(config, "base"))


def _migrate(url: str, migrate: Callable[[Connection, Config], None]) -> None:
    with _told(url), migration_connection(url) as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        migrate(connection, config)


@contextmanager
def _told(url: str) -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        if (cause := cause_of(error.orig)) is not Cause.NO_ANSWER:
            raise unavailable(cause) from error
        where, (reason, *_) = place(parse_url(url)), str(error.orig).strip().splitlines() or ["it gives no reason"]
        raise RegistryUnavailable(f"the registry's database at {where} does not answer: {reason}") from error


def _check_encoding(connection: Connection, *, new: bool = False) -> None:
    """Refuse a PostgreSQL database that keeps bytes instead of text, and for a new registry any that is not UTF-8.

    Raises:
        RegistryUnavailable
    """
    if connection.dialect.name != "postgresql":
        return
    found = connection.scalar(text("SHOW server_encoding"))
    if found == "SQL_ASCII" or (new and found != "UTF8"):
        url = connection.engine.url
        raise RegistryUnavailable(
            f"the registry's database {url.database} at {place(url)} has the encoding {found}, which cannot hold every "
            f"text. Make another one: CREATE DATABASE {url.database} ENCODING 'UTF8' TEMPLATE template0"
        )


@contextmanager
def migration_connection(url: str) -> Iterator[Connection]:
    """A connection in one transaction that no second migration can enter; committed at the end."""
    with _opened(url) as engine, engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        yield connection


@contextmanager
def _opened(url: str) -> Iterator[Engine]:
    engine = _engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


def _engine(url: str) -> Engine:
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        # Told nothing, the driver makes no text of what a server says whose encoding is SQL_ASCII.
        return create_engine(parsed, connect_args={"connect_timeout": 5, "client_encoding": "utf8"})
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
