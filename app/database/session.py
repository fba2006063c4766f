"""Connections to the registry's database, SQLite (one node) or PostgreSQL, in short transactions."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, ExceptionContext, QueuePool, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.database.migrate import earlier_revisions, head_revision, newer_than_this_release, oldest_revision
from app.database.troubles import Troubles
from app.database.urls import SQLITE_BUSY_MS, parse_url
from app.domain.errors import RegistryUnavailable

_POOL_TIMEOUT_S = 10
_SQLITE_READERS = 4
#: Page cache of a read connection in KiB. See docs/decisions/0035-page-cache-of-sqlite-readers.md.
_SQLITE_READER_CACHE_KIB = 128
_LOOKUP_S = 10
#: SQLSTATE ``read_only_sql_transaction``.
_READ_ONLY = "25006"

T = TypeVar("T")


class Database:
    """The registry's database, for the life of the process. Construction does not connect.

    Every method that uses a connection raises ``RegistryUnavailable`` if the database does not respond.

    Raises:
        ValueError: the registry does not support this URL.
    """

    def __init__(self, url: str) -> None:
        parsed = parse_url(url)
        engines = _sqlite_engines if parsed.get_backend_name() == "sqlite" else _postgresql_engines
        self._reader, self._writer = engines(parsed)
        #: True if several servers may share it, with row locks.
        self.is_postgresql = parsed.get_backend_name() == "postgresql"
        self._head, self._earlier = head_revision(), earlier_revisions()
        #: Causes of failed statements.
        self.troubles = Troubles()
        #: Generation of cached results; a result of an earlier generation may be out of date.
        self.generation = 0
        self._lookups = _SqliteLookups(parsed) if parsed.get_backend_name() == "sqlite" else None

    async def lookup(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` on a read-only connection; for the queries of every request.

        On SQLite this takes one thread hop in all, where ``read`` takes four per statement.

        Raises:
            RegistryUnavailable: on PostgreSQL also after a timeout of ten seconds.
        """
        with self._translated():
            if self._lookups is not None:
                return await self._lookups.run(work)
            return await self._within(_LOOKUP_S, self._look_up(work))

    async def _look_up(self, work: Callable[[Connection], T]) -> T:
        async with self._reader.connect() as connection:
            return await connection.run_sync(work)

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection]:
        """A connection for read-only statements, each in a separate transaction."""
        with self._translated():
            async with self._reader.connect() as connection:
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncConnection]:
        """A connection in one transaction, committed at the end and rolled back on an error.

        On SQLite it takes the write lock with the first statement, so that two writers wait for each other and never
        deadlock.

        Raises:
            sqlalchemy.exc.IntegrityError: a constraint rejected a row; the transaction is over.
        """
        with self._translated():
            try:
                async with self._writer.begin() as connection:
                    yield connection
            finally:
                # After an error too, because the commit may have succeeded.
                self.invalidate()

    def invalidate(self) -> None:
        """Start a new generation: results of earlier queries are not reused."""
        self.generation += 1

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except PoolTimeout as error:
            raise self.troubles.note(error) from error
        except (OperationalError, InterfaceError) as error:
            raise self.troubles.note(error.orig) from error
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise self.troubles.note(error.orig) from error

    async def _within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work`` within a timeout.

        :func:`asyncio.timeout` would wait until the driver has cancelled its query: forever if the server is silent.

        Raises:
            RegistryUnavailable: timeout; the connection returns to the pool when the server responds or is gone.
        """
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task}, timeout=seconds)
            if not task.done():
                raise self.troubles.note(None)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                task.add_done_callback(_read)

    async def check(self) -> str | None:
        """Check that the database responds and that this release can use its schema; return the schema's revision.

        The schema may be newer if all migrations since this release are additive. A server that crashes during a
        rolling update can therefore restart.

        Raises:
            RegistryUnavailable: this release cannot use the schema.
        """
        revision = await self._schema()
        if revision == self._head:
            return revision
        if revision in self._earlier:
            state = f"is at revision {revision}" if revision else "does not exist yet"
            raise RegistryUnavailable(
                f"The registry's schema {state}; this release needs {self._head}. Run `tenora server migrate`."
            )
        async with self.read() as connection:
            oldest = await connection.run_sync(oldest_revision)
        if oldest is None or oldest not in {self._head, *self._earlier}:
            raise newer_than_this_release(revision)
        return revision

    async def check_serving(self) -> None:
        """Check that a running server may continue: its schema is of this release or newer.

        During a rolling update, the new release migrates the registry while servers of the old one run. Migrations are
        additive.

        Raises:
            RegistryUnavailable: the schema is older than this release.
        """
        if await self._schema() in self._earlier:
            raise RegistryUnavailable("The registry's schema is older than this release. Run `tenora server migrate`.")

    async def _schema(self) -> str | None:
        async with self.read() as connection:
            exists = await connection.run_sync(lambda sync: inspect(sync).has_table("alembic_version"))
            return await connection.scalar(text("SELECT version_num FROM alembic_version")) if exists else None

    async def close(self) -> None:
        await self._reader.dispose()
        await self._writer.dispose()
        if self._lookups is not None:
            await asyncio.to_thread(self._lookups.close)


class _SqliteLookups:
    """Dedicated threads for look-ups, each with a connection; uploads on the default threads cannot delay them."""

    def __init__(self, url: URL) -> None:
        self._threads = ThreadPoolExecutor(_SQLITE_READERS, thread_name_prefix="registry")
        self._engine = create_engine(
            url.set(drivername="sqlite"),
            poolclass=QueuePool,
            pool_size=_SQLITE_READERS,
            max_overflow=0,
            isolation_level="AUTOCOMMIT",
            skip_autocommit_rollback=True,
            connect_args={"check_same_thread": False},
        )
        event.listen(self._engine, "connect", _prepare_reader)

    async def run(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._work, work)

    def close(self) -> None:
        self._threads.shutdown()
        self._engine.dispose()

    def _work(self, work: Callable[[Connection], T]) -> T:
        with self._engine.connect() as connection:
            return work(connection)


def _read(task: "asyncio.Task[Any]") -> None:
    """Retrieve the exception of an abandoned task, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _postgresql_engines(url: URL) -> tuple[AsyncEngine, AsyncEngine]:
    writer = create_async_engine(
        url,
        pool_size=10,
        max_overflow=10,
        pool_timeout=_POOL_TIMEOUT_S,
        # Detects a restarted server here, instead of in the next ten requests.
        pool_pre_ping=True,
        skip_autocommit_rollback=True,
        # Gives up on a silent server within seconds; the kernel's default is a quarter of an hour.
        connect_args={
            "connect_timeout": 5,
            "tcp_user_timeout": 10_000,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 2,
        },
    )
    event.listen(writer.sync_engine, "handle_error", _leave_if_read_only)
    # Shares the pool. Autocommit saves the round trips of BEGIN and ROLLBACK for a single SELECT.
    return writer.execution_options(isolation_level="AUTOCOMMIT"), writer


def _leave_if_read_only(context: ExceptionContext) -> None:
    """Invalidate the pool if a server is read-only: after a failover, new connections reach the primary."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


def _sqlite_engines(url: URL) -> tuple[AsyncEngine, AsyncEngine]:
    reader = create_async_engine(
        url, pool_size=_SQLITE_READERS, max_overflow=0, isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True
    )
    event.listen(reader.sync_engine, "connect", _prepare_reader)
    # One connection: writers of this process queue here in FIFO order, instead of polling SQLite's lock.
    writer = create_async_engine(url, pool_size=1, max_overflow=0, pool_timeout=_POOL_TIMEOUT_S)
    event.listen(writer.sync_engine, "connect", _prepare_writer)
    event.listen(writer.sync_engine, "begin", _begin_immediate)
    return reader, writer


def _prepare_reader(connection: Any, _record: Any) -> None:
    _pragmas(connection, f"busy_timeout={SQLITE_BUSY_MS}", "query_only=ON", f"cache_size=-{_SQLITE_READER_CACHE_KIB}")


def _prepare_writer(connection: Any, _record: Any) -> None:
    # Disable the driver's implicit transactions: each transaction starts as IMMEDIATE.
    connection.isolation_level = None
    _pragmas(connection, f"busy_timeout={SQLITE_BUSY_MS}", "foreign_keys=ON")


def _pragmas(connection: Any, *pragmas: str) -> None:
    cursor = connection.cursor()
    for pragma in pragmas:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
