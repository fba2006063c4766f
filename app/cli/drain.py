"""``tenora server drain``: empty the usage journal of a HOME whose server has stopped."""

import asyncio
from pathlib import Path
from typing import Any

from app.cli.configuration import load_settings
from app.cli.setup import report_failures
from app.settings import Settings
from app.support.home import exclusive
from tenora_client.cli.connection import Json
from tenora_client.cli.output import emit_json, fail, note

#: What a HOME may hold besides the journal that exists nowhere else.
_UNIQUE = {
    "secrets/pepper": "the pepper of the registry, unless its other servers have it too",
    "tenora.db": "a registry in SQLite",
    "blobs": "a store of adapters",
}


def drain(as_json: Json = False) -> None:
    """Ship the usage records in HOME to the database. Run it before you delete the HOME of a stopped server.

    The exit code is 1 if records stay in HOME.
    """
    from app.cli.registry import check_schema

    settings = load_settings()
    if not settings.home.is_dir():
        fail(f"There is no folder {settings.home}. Set TENORA_HOME to the HOME of the server that has stopped.")
    with report_failures(), exclusive(settings.home):
        check_schema(settings)
        shipped = asyncio.run(_ship(settings))
    damaged = _files(settings, "*.damaged")
    if as_json:
        emit_json(_report(shipped, damaged))
    else:
        note(f"The database has all usage records of {settings.home}: {shipped} bytes were shipped.")
        for path, content in _UNIQUE.items():
            if (settings.home / path).exists():
                note(f"{settings.home / path} remains. It is {content}.")
    if damaged:
        names = ", ".join(path.name for path in damaged)
        fail(f"Records that cannot be read remain in {settings.home / 'usage'}: {names}. Keep these files.")


def _report(shipped: int, damaged: list[Path]) -> dict[str, Any]:
    return {"shipped_bytes": shipped, "damaged": [str(path) for path in damaged]}


async def _ship(settings: Settings) -> int:
    """Ship all records, and return their size in the journal, in bytes.

    Raises:
        RegistryUnavailable, OSError: records stay in the journal.
    """
    from app.database.session import Database
    from app.database.urls import database_url
    from app.services.usage.journal import Journal
    from app.services.usage.ledger import Ledger

    database = Database(database_url(settings))
    journal = Journal(settings.home / "usage")
    ledger = Ledger(database, journal)
    try:
        await ledger.open()
        waiting = await asyncio.to_thread(ledger.waiting_bytes)
        await ledger.ship()
        return waiting
    finally:
        await journal.close()
        await database.close()


def _files(settings: Settings, pattern: str) -> list[Path]:
    return sorted((settings.home / "usage").glob(pattern))
