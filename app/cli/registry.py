"""Work on HOME and the database without a server: set up, migrate, check, issue keys.

SQLAlchemy and Alembic take a second to import. Commands that only talk to a server never import this module.
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
from app.services.access.key_changes import NewKey
from app.services.access.key_format import KeyHasher
from app.services.access.keys import KeyService
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
    """Create HOME (for its owner only), the schema and the pepper, and check that the store answers. This blocks.

    Args:
        new_pepper: accept this HOME's pepper although the registry was created with another one.

    Raises:
        RegistryUnavailable, MissingPepper, WrongPepper, InvalidPepper, ValueError, OSError
        adapters.errors.AdapterError: the store's URL is invalid, or the store cannot be used.
    """
    # Check the database's URL and the store before anything is created in the database.
    parse_url(database_url(settings))
    secure_home(settings.home)
    check_store(settings)
    upgrade(database_url(settings))
    asyncio.run(
        _with_database(settings, lambda database: (replace_pepper if new_pepper else open_peppers)(database, settings))
    )


def check_pepper(settings: Settings) -> None:
    """Load the pepper and verify that it is the registry's. This blocks.

    Raises:
        RegistryUnavailable, MissingPepper, WrongPepper, InvalidPepper, ValueError, OSError
    """
    asyncio.run(_with_database(settings, lambda database: open_peppers(database, settings)))


def upgrade_schema(settings: Settings) -> str | None:
    """Upgrade the schema to this release, unless it is newer and compatible. This blocks.

    Returns:
        The schema's revision after the upgrade.

    Raises:
        RegistryUnavailable, ValueError, OSError
    """
    secure_home(settings.home)
    return upgrade(database_url(settings))


def check_schema(settings: Settings) -> str | None:
    """Check that this release can use the schema. This blocks.

    Returns:
        The schema's revision.

    Raises:
        RegistryUnavailable: the schema is incompatible, or the database does not answer.
        ValueError: the registry does not support the database's URL.
    """
    url = parse_url(database_url(settings))
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        raise RegistryUnavailable(f"There is no registry at {url.database}. Run `tenora server init`.")
    check_database(database_url(settings))
    return asyncio.run(_with_database(settings, Database.check))


async def _with_database(settings: Settings, work: Callable[[Database], Awaitable[T]]) -> T:
    database = Database(database_url(settings))
    try:
        return await work(database)
    finally:
        await database.close()


def check_store_owner(settings: Settings) -> None:
    """Verify that the store belongs to this registry. A store that does not answer is skipped. This blocks.

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
    """Assign the store to this registry. This blocks.

    Returns:
        The registry that owned the store before, and the one that owns it now.

    Raises:
        ForeignStore: the store belongs to another registry and ``force`` is false.
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
    """Issue a platform key with all scopes.

    Returns:
        The new key, or None if a valid one exists and ``force`` is false.

    Raises:
        RegistryUnavailable
    """
    async with _keys(settings) as keys:
        if not force and await _any_works(keys):
            return None
        return await keys.create(None, name=_KEY_NAME, actor=_ACTOR)


async def works_for_platform(settings: Settings, text: str) -> bool:
    """Return whether the text is a valid platform key.

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
