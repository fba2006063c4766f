"""Schema migrations with Alembic, safe if several processes start at once.

Each migration declares whether it is ``additive``. An additive one adds only tables, and columns that are null or have
a default in the database. Servers of the release before then keep working. The registry stores the oldest revision
whose servers can use the schema. An older server can therefore judge a schema that it does not know.
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

#: The package ``migrations``, next to this one in a checkout and in an installed wheel.
_MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"

# Key of the advisory lock, unique in this database.
_ADVISORY_LOCK = 7_305_790_114

#: Name of the fact in ``installation``.
_OLDEST = "oldest_revision"


def alembic_config() -> Config:
    config = Config()
    # Alembic expands % signs.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def head_revision() -> str | None:
    """Return the newest revision that this release knows."""
    return ScriptDirectory.from_config(alembic_config()).get_current_head()


def earlier_revisions() -> frozenset[str | None]:
    """Return the revisions from which this release can migrate; None stands for an empty database."""
    script = ScriptDirectory.from_config(alembic_config())
    head = script.get_current_head()
    return frozenset({None, *(migration.revision for migration in script.walk_revisions())} - {head})


def oldest_revision(connection: Connection) -> str | None:
    """Return the oldest revision whose servers can use the schema; None if it is not recorded."""
    if not inspect(connection).has_table(installation.name):
        return None
    return connection.scalar(select(installation.c.value).where(installation.c.name == _OLDEST))


def note_oldest(connection: Connection, script: ScriptDirectory, heads: Collection[str]) -> None:
    """Record the value of :func:`oldest_revision` after a migration to these heads."""
    if not heads or not inspect(connection).has_table(installation.name):
        return
    (revision,) = heads
    migration = script.get_revision(revision)
    while getattr(migration.module, "additive", False) and isinstance(migration.down_revision, str):
        migration = script.get_revision(migration.down_revision)
    oldest = migration.revision
    changed = connection.execute(update(installation).where(installation.c.name == _OLDEST).values(value=oldest))
    if not changed.rowcount:
        connection.execute(installation.insert().values(name=_OLDEST, value=oldest))


def upgrade(url: str) -> str | None:
    """Create or upgrade the schema, in one transaction; blocks.

    A newer schema that this release can use stays unchanged.

    Returns:
        The resulting revision.

    Raises:
        RegistryUnavailable: the database does not respond, or has a newer schema that this release cannot use.
        ValueError: the registry does not support this URL.
    """
    head = head_revision()
    revisions = {head, *earlier_revisions()}
    result = head

    def migrate(connection: Connection, config: Config) -> None:
        nonlocal result
        current = MigrationContext.configure(connection).get_current_revision()
        _check_encoding(connection, new=current is None)
        if current in revisions:
            command.upgrade(config, "head")
        elif oldest_revision(connection) in revisions - {None}:
            result = current
        else:
            raise newer_than_this_release(current)

    _migrate(url, migrate)
    return result


def check_database(url: str) -> None:
    """Connect once and report the location and the problem to an operator; blocks.

    Raises:
        RegistryUnavailable: the database does not respond, or its encoding cannot hold every text.
        ValueError: the registry does not support this URL.
    """
    if parse_url(url).get_backend_name() == "postgresql":
        with _translated(url), _opened(url) as engine, engine.connect() as connection:
            _check_encoding(connection)


def newer_than_this_release(revision: str | None) -> RegistryUnavailable:
    """Build the error for a schema that this release cannot use."""
    return RegistryUnavailable(
        f"The registry's schema is at revision {revision}, which this release cannot use. "
        "Start the newer release that created it."
    )


def downgrade(url: str) -> None:
    """Drop the whole schema with all data; blocks.

    Raises:
        RegistryUnavailable: the database does not respond.
        ValueError: the registry does not support this URL.
    """
    _migrate(url, lambda _, config: command.downgrade(config, "base"))


def _migrate(url: str, migrate: Callable[[Connection, Config], None]) -> None:
    with _translated(url), migration_connection(url) as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        migrate(connection, config)


@contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        if (cause := cause_of(error.orig)) is not Cause.NO_ANSWER:
            raise unavailable(cause) from error
        where, (reason, *_) = place(parse_url(url)), str(error.orig).strip().splitlines() or ["no reason given"]
        raise RegistryUnavailable(
            f"The registry's database at {where} does not answer: {reason.rstrip('.')}. "
            "Check the database and TENORA_DATABASE_URL."
        ) from error


def _check_encoding(connection: Connection, *, new: bool = False) -> None:
    """Reject the encoding SQL_ASCII, which stores bytes instead of text; a new registry must use UTF-8.

    Raises:
        RegistryUnavailable: the encoding cannot hold every text.
    """
    if connection.dialect.name != "postgresql":
        return
    encoding = connection.scalar(text("SHOW server_encoding"))
    if encoding == "SQL_ASCII" or (new and encoding != "UTF8"):
        url = connection.engine.url
        raise RegistryUnavailable(
            f"The registry's database {url.database} at {place(url)} has the encoding {encoding}, which cannot hold "
            "every text. Replace the database with one made by "
            f"`CREATE DATABASE {url.database} ENCODING 'UTF8' TEMPLATE template0`."
        )


@contextmanager
def migration_connection(url: str) -> Iterator[Connection]:
    """A connection in one transaction that excludes other migrations; committed at the end."""
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
        # Without client_encoding, the driver returns bytes from a server whose encoding is SQL_ASCII.
        return create_engine(parsed, connect_args={"connect_timeout": 5, "client_encoding": "utf8"})
    path = Path(str(parsed.database))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    engine = create_engine(parsed.set(drivername="sqlite"))
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # Disable the driver's transactions: it commits before each DDL statement, so a failed migration would stay half
    # done.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={SQLITE_BUSY_MS}")
    # WAL is a property of the file; with it, readers never wait for the writer.
    connection.execute("PRAGMA journal_mode=WAL")
