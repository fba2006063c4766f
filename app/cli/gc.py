"""``tenora server gc``: works on the store and the database, while any number of servers run or none."""

import asyncio
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.configuration import load_settings
from app.cli.setup import report_failures
from app.settings import Settings
from tenora_client.cli.connection import Json
from tenora_client.cli.output import emit_json, emit_table, note

if TYPE_CHECKING:
    from app.domain.deletions import BlobFate
    from app.services.deletion.gc import Findings

_ORPHAN_COLUMNS = {
    "blob without a version": "digest",
    "bytes": "size_bytes",
    "written": "modified_at",
    "outcome": "what",
}
_DANGLING_COLUMNS = {"tenant": "tenant", "version without its bytes": "version", "blob": "digest"}


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be removed and remove nothing")] = False,
    min_age_hours: Annotated[float, typer.Option(min=0, help="Minimum age of what is removed, in hours")] = 24.0,
    as_json: Json = False,
) -> None:
    """Remove blobs and uploads that no version needs, and expired rows.

    Versions without bytes are listed, never removed. While any exist, the exit code is 1.
    """
    from app.cli.registry import check_schema

    settings = load_settings()
    with report_failures():
        check_schema(settings)
        findings, fates = asyncio.run(_run(settings, timedelta(hours=min_age_hours), dry_run=dry_run))
    _show(findings, fates, dry_run=dry_run, as_json=as_json)
    if findings.dangling:
        raise typer.Exit(1)


async def _run(settings: Settings, min_age: timedelta, *, dry_run: bool) -> "tuple[Findings, Mapping[str, BlobFate]]":
    from app.database.session import Database
    from app.database.urls import database_url
    from app.services.deletion.gc import GcService
    from app.services.publishing.blobs import BlobService
    from app.services.publishing.uploads.sweeper import UploadSweeper
    from app.wiring.store import configured_store

    store = configured_store(settings)
    database = Database(database_url(settings))
    try:
        blobs = BlobService(database, store, uuid.uuid4().hex)
        service = GcService(database, store, blobs, UploadSweeper(database, store, settings.limits))
        findings = await service.survey(min_age=min_age)
        return findings, {} if dry_run else await service.collect(findings)
    finally:
        await database.close()


def _show(findings: "Findings", fates: "Mapping[str, BlobFate]", *, dry_run: bool, as_json: bool) -> None:
    orphans = [
        {
            "digest": blob.digest,
            "size_bytes": blob.size,
            "modified_at": blob.modified_at.isoformat(),
            "what": "would be removed" if dry_run else _outcome(fates.get(blob.digest)),
        }
        for blob in findings.orphans
    ]
    dangling = [{"tenant": row.tenant, "version": row.version, "digest": row.digest} for row in findings.dangling]
    rows: dict[str, Any] = {
        "young_blobs": findings.young,
        "expired_uploads": findings.expired_uploads,
        "old_idempotency_keys": findings.old_answers,
        "unseen_nodes": findings.unseen_nodes,
    }
    if as_json:
        emit_json({"dry_run": dry_run, "orphans": orphans, "dangling": dangling, **rows})
        return
    emit_table(_ORPHAN_COLUMNS, orphans, empty="There are no blobs without a version.")
    emit_table(_DANGLING_COLUMNS, dangling, empty="There are no versions without their bytes.")
    counts = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in rows.items())
    note(f"{counts.capitalize()}.")


def _outcome(fate: "BlobFate | None") -> str:
    if fate is None or not fate.decided:
        return "left"
    return f"kept: {fate.kept}" if fate.kept else "removed"
