"""``tenora server audit``: works on the database and HOME, without a server."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from app.cli.configuration import load_settings
from app.cli.setup import report_failures
from app.settings import Settings
from tenora_client.cli.connection import Json
from tenora_client.cli.output import emit_json, fail, note

if TYPE_CHECKING:
    from app.database.session import Database
    from app.services.access.audit import Verdict

app = typer.Typer(no_args_is_help=True, help="Verify or export the audit trail, the record of all changes.")


@app.command()
def verify(as_json: Json = False) -> None:
    """Verify every row of the audit trail against its seal. The exit code is 1 after tampering."""
    from app.cli.registry import check_schema

    settings = load_settings()
    with report_failures():
        check_schema(settings)
        verdict = asyncio.run(_verify(settings))
    if as_json:
        emit_json(asdict(verdict))
    for problem in verdict.problems:
        note(problem)
    if verdict.problems:
        fail(f"The audit trail has {verdict.problem_count} problems in {verdict.sealed} sealed rows.")
    if verdict.trimmed:
        note(f"Retention has removed the rows up to {verdict.trimmed}.")
    note(f"{verdict.sealed} rows match their seals. {verdict.fresh} rows are not sealed yet.")


@app.command()
def export() -> None:
    """Print the whole audit trail as JSON lines, oldest row first."""
    from app.cli.registry import check_schema

    settings = load_settings()
    with report_failures():
        check_schema(settings)
        asyncio.run(_export(settings))


async def _verify(settings: Settings) -> "Verdict":
    from app.services.access.audit import AuditService
    from app.services.access.pepper_check import check_peppers
    from app.services.access.peppers import load_peppers

    # With a different pepper every sound row would look forged.
    peppers = load_peppers(settings, make=False)
    async with _database(settings) as database:
        await check_peppers(database, peppers, settings)
        return await AuditService(database, peppers, settings.home / "audit-seal").verify()


async def _export(settings: Settings) -> None:
    from app.database import events

    last = 0
    async with _database(settings) as database, database.read() as connection:
        while rows := await events.rows_above(connection, last, limit=1000):
            for row in rows:
                sys.stdout.write(json.dumps(asdict(row) | {"at": row.at.isoformat()}) + "\n")
            last = rows[-1].id


@asynccontextmanager
async def _database(settings: Settings) -> "AsyncIterator[Database]":
    from app.database.session import Database
    from app.database.urls import database_url

    database = Database(database_url(settings))
    try:
        yield database
    finally:
        await database.close()
