"""What the command does to HOME and the database itself, without a server.

SQLAlchemy and Alembic cost a second to import: commands that only talk to a server never import this module.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from adapters.errors import BlobNotFound, ForeignStore, StoreUnavailable
from app.database.migrate import check_database, upgrade
from app.database.session import Database
from app.database.urls import database_url, parse_url
from app.domain.access import Key, Scope
from app.domain.errors import RegistryUnavailable, Unauthenticated
from app.services.access.caller_cache import CallerCache
from app.services.access.key_format import KeyHasher
from app.services.access.keys import KeyService, NewKey
from app.services.access.pepper_check import open_peppers, replace_pepper
from app.services.access.peppers import load_peppers
from app.services.operations.store_owner import StoreOwner
from app.settings import Settings
from app.support.home import secure_home
from app.wiring.store import check_store, configured_store

_ACTOR = "cli"
_KEY_NAME = "first platform key"

T = TypeVar("T")


def prepare(settings: Settings, *, new_pepper: bool = False) -> None:
    """Make HOME (only its owner may enter), the schema and the pepper, and ask the store whether it answers; blocks.

    Args:
        new_pepper: go on with this HOME's pepper although the registry was made with another one.

    Raises:
        RegistryUnavailable, MissingPepper, WrongPepper, InvalidPepper, ValueError, OSError
        adapters.errors.AdapterError: the store's URL is not one, or it cannot be used.
    """
    # Before anything is made in a database for a store that cannot work.
    parse_url(database_url(settings))
    secure_home(settings.home)
    check_store(settings)
    upgrade(database_url(settings))
    asyncio.run(
        _with_database(settings, lambda database: (replace_pepper if new_pepper else open_peppers)(database, settings))
    )


def check_pepper(settings: Settings) -> None:
    """Load the pepper and prove that it is the registry's; blocks.

    Raises:
        RegistryUnavailable, MissingPepper, WrongPepper, InvalidPepper, ValueError, OSError
    """
    asyncio.run(_with_database(settings, lambda database: open_peppers(database, settings)))


def upgrade_schema(settings: Settings) -> str | None:
    """Bring the schema to this release's revision, unless it is newer and fits; the revision that it has now; blocks.

    Raises:
        RegistryUnavailable, ValueError, OSError
    """
    secure_home(settings.home)
    return upgrade(database_url(settings))


def check_schema(settings: Settings) -> str | None:
    """The schema's revision, if this release can use it; blocks.

    Raises:
        RegistryUnavailable: it cannot, or the database does not answer.
        ValueError: the database's URL is not one that the registry supports.
    """
    url = parse_url(database_url(settings))
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        raise RegistryUnavailable(f"there is no registry at {url.database}: run tenora init")
    check_database(database_url(settings))
    return asyncio.run(_with_database(settings, Database.check))


async def _with_database(settings: Settings, work: Callable[[Database], Awaitable[T]]) -> T:
    database = Database(database_url(settings))
    try:
        return await work(database)
    finally:
        await database.close()


def check_store_owner(settings: Settings) -> None:
    """Prove that the store is this registry's; one that does not answer is passed over. Blocks.

    Raises:
        ForeignStore, RegistryUnavailable, ValueError
        adapters.errors.AdapterError: the store's URL is not usable.
    """

    async def check() -> None:
        async with _store_owner(settings) as owner:
            with contextlib.suppress(StoreUnavailable, BlobNotFound):
                await owner.ensure()

    asyncio.run(check())


def adopt_store(settings: Settings, *, force: bool) -> tuple[str | None, str]:
    """Make the store this registry's; returns its owner before and now. Blocks.

    Raises:
        ForeignStore: it is another registry's, and this is not forced.
        RegistryUnavailable, ValueError, adapters.errors.AdapterError
    """

    async def adopt() -> tuple[str | None, str]:
        async with _store_owner(settings) as owner:
            if not force and (other := await owner.other()) is not None:
                raise ForeignStore(
                    f"The store belongs to registry {other}. Stop its servers, then run this again with --yes."
                )
            return await owner.adopt(actor=_ACTOR)

    return asyncio.run(adopt())


@asynccontextmanager
async def _store_owner(settings: Settings) -> AsyncIterator[StoreOwner]:
    database = Database(database_url(settings))
    try:
        yield StoreOwner(database, configured_store(settings))
    finally:
        await database.close()


async def issue_platform_key(settings: Settings, *, force: bool) -> NewKey | None:
    """A new platform key for everything; None if one works already, unless forced.

    Raises:
        RegistryUnavailable
    """
    async with _keys(settings) as keys:
        if not force and await _any_works(keys):
            return None
        return await keys.create(None, name=_KEY_NAME, actor=_ACTOR)


async def works_for_platform(settings: Settings, text: str) -> bool:
    """Whether this key is a platform key that works.

    Raises:
        RegistryUnavailable
    """
    async with _keys(settings) as keys:
        try:
            return Scope.ADMIN in (await keys.authenticate(text)).scopes
        except Unauthenticated:
            return False


@asynccontextmanager
async def _keys(settings: Settings) -> AsyncIterator[KeyService]:
    database = Database(database_url(settings))
    try:
        yield KeyService(database, KeyHasher(load_peppers(settings, make=False)), CallerCache())
    finally:
        await database.close()


async def _any_works(keys: KeyService) -> bool:
    now = datetime.now(UTC)
    cursor: str | None = None
    while True:
        page = await keys.list(None, cursor=cursor)
        if any(Scope.ADMIN in key.scopes and _works(key, now) for key in page.data):
            return True
        cursor = page.next_cursor
        if cursor is None:
            return False


def _works(key: Key, now: datetime) -> bool:
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > now)
