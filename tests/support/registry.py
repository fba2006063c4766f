"""Shared helpers for tests of the registry. The fixtures are in ``registry_fixtures``."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import psycopg
from sqlalchemy import Connection, event, make_url
from sqlalchemy.engine import Engine

from adapters.identity import DEFAULT_ALIAS, FilePair
from app.database.adapters import ensure_adapter, set_targets
from app.database.audit import record
from app.database.session import Database
from app.database.tenants import find_tenant
from app.database.versions import NewVersion, find_version, insert_version, settle_version
from app.domain.adapters import Provenance, Version, VersionState
from app.services.access.caller_cache import CallerCache
from app.services.access.key_format import KeyHasher
from app.services.access.keys import KeyService
from app.services.access.own_keys import OwnKeyService
from app.services.access.peppers import Peppers
from app.services.access.sessions import SessionService
from app.services.access.tenants import TenantService
from app.services.catalog.adapters import AdapterService
from app.services.deletion.deletions import DeletionService

#: Base model against which the versions of these tests were validated.
BASE_NAME, BASE_DIGEST = "llama", "b" * 64

PEPPERS = Peppers(b"the pepper of the tests, 32 bytes or more")


@dataclass
class SettableClock:
    """Clock that stands still until a test moves it."""

    now: datetime = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    elapsed_s: float = 0.0

    def __call__(self) -> datetime:
        return self.now

    def monotonic(self) -> float:
        return self.elapsed_s

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.elapsed_s += seconds


@dataclass
class Node:
    """Services of one Tenora process."""

    database: Database
    clock: SettableClock
    keys: KeyService = field(init=False)
    own_keys: OwnKeyService = field(init=False)
    cache: CallerCache = field(init=False)
    sessions: SessionService = field(init=False)
    tenants: TenantService = field(init=False)
    adapters: AdapterService = field(init=False)
    deletions: DeletionService = field(init=False)

    def __post_init__(self) -> None:
        self.cache = cache = CallerCache(monotonic=self.clock.monotonic)
        hasher = KeyHasher(PEPPERS)
        self.keys = KeyService(self.database, hasher, cache, clock=self.clock)
        self.sessions = SessionService(self.database, hasher, cache, self.keys.uses, clock=self.clock)
        self.own_keys = OwnKeyService(self.database, self.keys, clock=self.clock)
        self.tenants = TenantService(self.database, cache, clock=self.clock)
        self.adapters = AdapterService(
            self.database,
            base_name=BASE_NAME,
            base_digest=BASE_DIGEST,
            clock=self.clock,
            monotonic=self.clock.monotonic,
        )
        self.deletions = DeletionService(self.database, lambda: None, clock=self.clock)

    def await_others(self) -> None:
        """Wait until this process must see the writes of another: no time on PostgreSQL, a second on SQLite."""
        if not self.database.is_postgresql:
            self.clock.advance(1)

    async def publish(
        self, tenant: str, adapter: str, content: str, *, normal: str | None = None, by: str = "cli"
    ) -> Version:
        """Write the registry rows of an upload: a new version from this content, with ``default`` moved to it.

        Args:
            normal: content of its normal form, if it has one.
            by: id of the key that uploads it.
        """
        async with self.database.write() as connection:
            owner = await find_tenant(connection, tenant, lock=True)
            assert owner is not None
            adapter_id = await ensure_adapter(connection, owner, adapter, at=self.clock())
            new = replace(new_version(content, self.clock(), normal=normal), created_by=by)
            version = await insert_version(connection, adapter_id, new)
            version_id = version.key.version_id
            await settle_version(connection, version_id, VersionState.READY)
            targets, at = {version_id: 100}, self.clock()
            await set_targets(connection, adapter_id, DEFAULT_ALIAS, targets, at=at, actor="cli", action="publish")
            subject = f"{adapter}@{version.number}"
            await record(connection, at=at, actor="cli", action="version.ready", tenant=tenant, subject=subject)
            shown = await find_version(connection, adapter_id, version.number)
        assert shown is not None
        return shown


def new_version(content: str, at: datetime, *, normal: str | None = None) -> NewVersion:
    return NewVersion(
        **asdict(file_pair(content)),
        normal=None if normal is None else file_pair(normal),
        rank=8,
        manifest={"r": 8, "lora_alpha": 16},
        created_at=at,
        created_by="cli",
        provenance=Provenance(source={"kind": "upload"}, base_name=BASE_NAME, base_digest=BASE_DIGEST),
    )


def file_pair(content: str) -> FilePair:
    config, weights = f"config of {content}".encode(), f"weights of {content}".encode()
    return FilePair(sha256(config).hexdigest(), sha256(weights).hexdigest(), len(config), len(weights))


@contextmanager
def recorded_statements(registry_url: str) -> Iterator[list[str]]:
    """Record the SQL that runs in this database inside this context. Statements of other tests' servers are ignored."""
    statements: list[str] = []
    database = make_url(registry_url).database

    def note(connection: Connection, _cursor: object, statement: str, *_rest: object) -> None:
        if connection.engine.url.database == database:
            statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def run_on_server(server: str, statement: str, *parameters: object) -> None:
    """Run one statement on the maintenance database, outside any transaction."""
    with psycopg.connect(server.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statement.encode(), parameters)
