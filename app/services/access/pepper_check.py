"""Pepper check: a server starts only with the pepper under which the registry's keys were made.

With another pepper no key works, and every audit seal looks forged. The registry therefore stores a check value,
derived from the pepper under which new keys are made. A server may start if one of its peppers has that value.
During a rotation, servers that accept both peppers start in any order. The check value follows the current pepper
of the server that started last.
"""

import asyncio
import hmac
from itertools import pairwise

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit_seals, events, installation
from app.database.session import Database
from app.database.tables import keys
from app.domain.audit import anchored, sealed
from app.services.access.peppers import Peppers, WrongPepper, load_peppers
from app.settings import Settings

_FACT = "pepper"
_PURPOSE = "check value"
#: Number of recent audit rows to try where no check value is stored yet; one valid row is enough.
_TRIED = 100


async def open_peppers(database: Database, settings: Settings) -> Peppers:
    """Load and check the peppers of a starting server, and store their check value.

    A new registry gets a new pepper.

    Raises:
        MissingPepper, WrongPepper, InvalidPepper, OSError, RegistryUnavailable
    """
    async with database.read() as connection:
        used = await _is_used(connection)
    peppers = await asyncio.to_thread(load_peppers, settings, make=not used)
    await check_peppers(database, peppers, settings)
    await _note(database, peppers, settings)
    return peppers


async def check_peppers(database: Database, peppers: Peppers, settings: Settings) -> None:
    """Check the peppers against the registry without changing anything.

    Raises:
        WrongPepper: the peppers are not the registry's, as far as this can be determined.
        RegistryUnavailable
    """
    async with database.read() as connection:
        stored = await installation.read(connection, _FACT)
        matches = _is_one(stored, peppers) if stored else await _sealed_something(connection, peppers)
    if not matches:
        raise _wrong(settings)


async def replace_pepper(database: Database, settings: Settings) -> Peppers:
    """Adopt this server's pepper for the registry. All existing keys and audit seals become invalid.

    Raises:
        InvalidPepper, OSError, RegistryUnavailable
    """
    peppers = await asyncio.to_thread(load_peppers, settings)
    async with database.write() as connection:
        current = _values(peppers)[0]
        await installation.write_once(connection, _FACT, current)
        await installation.replace(connection, _FACT, current)
    return peppers


async def _note(database: Database, peppers: Peppers, settings: Settings) -> None:
    current = _values(peppers)[0]
    async with database.read() as connection:
        if await installation.read(connection, _FACT) == current:
            return
    async with database.write() as connection:
        stored = await installation.write_once(connection, _FACT, current)
        if not _is_one(stored, peppers):
            # Another server stored its check value after ours was compared.
            raise _wrong(settings)
        if stored != current:
            await installation.replace(connection, _FACT, current)


def _values(peppers: Peppers) -> tuple[str, ...]:
    return tuple(value.hex() for value in peppers.derived(_PURPOSE))


def _is_one(stored: str, peppers: Peppers) -> bool:
    return any(hmac.compare_digest(stored, value) for value in _values(peppers))


async def _is_used(connection: AsyncConnection) -> bool:
    """Return whether the registry already depends on a pepper, so that a new one would not match."""
    if await installation.read(connection, _FACT) is not None:
        return True
    return await connection.scalar(select(keys.c.id).limit(1)) is not None


async def _sealed_something(connection: AsyncConnection, peppers: Peppers) -> bool:
    """Return whether a recent audit row was sealed under one of these peppers; True if nothing is sealed.

    This covers registries from the first release, which have no check value. One valid row is enough: other rows may
    have been tampered with, which ``tenora server audit verify`` reports.
    """
    newest = await audit_seals.newest(connection, limit=_TRIED + 1)
    if not newest:
        return True
    secrets = peppers.derived("audit", "seals")
    anchor, first = await audit_seals.start(connection)
    if anchor and any(hmac.compare_digest(anchored(key, first).mac, anchor.mac) for key in secrets):
        return True
    if len(newest) <= _TRIED and newest[0] != first:
        newest.insert(0, first)
    rows = await events.rows_with(connection, [seal.row_id for seal in newest])
    rows_by_id = {row.id: row for row in rows}
    return any(
        hmac.compare_digest(sealed(key, previous, rows_by_id[seal.row_id]).mac, seal.mac)
        for previous, seal in pairwise(newest)
        if seal.row_id in rows_by_id
        for key in secrets
    )


def _wrong(settings: Settings) -> WrongPepper:
    where = "TENORA_PEPPER" if settings.pepper is not None else f"{settings.home / 'secrets' / 'pepper'}"
    return WrongPepper(
        f"{where} is not the pepper under which this registry's keys were created. "
        "Restore that pepper, or put it into TENORA_ACCEPTED_PEPPERS if you rotate it. "
        "If it is lost, run `tenora server init --new-pepper` and create every key again."
    )
