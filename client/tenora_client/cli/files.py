"""``tenora files``: inputs of batches, and what batches wrote."""

from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

from tenora_client import progress
from tenora_client.answers import read
from tenora_client.batches.service import ServerBatches
from tenora_client.cli.arguments import Yes, confirm, seconds
from tenora_client.cli.batch_run import reported
from tenora_client.cli.cells import with_times
from tenora_client.cli.closed_values import checked_value
from tenora_client.cli.connection import Json, Key, Url, connect_as_tenant
from tenora_client.cli.generate import DemoTenant
from tenora_client.cli.output import USAGE, emit_json, emit_line, emit_record, emit_table, fail, note, stderr
from tenora_client.sending import FILES_PATH, FileToSend
from tenora_client.sending import upload as send
from tenora_client.transport import path_of
from tenora_client.types import File

app = typer.Typer(no_args_is_help=True, help="Files: inputs of batches, and what batches wrote.")

PURPOSES = ("batch", "batch_output")

_COLUMNS = {
    "id": "id",
    "name": "filename",
    "purpose": "purpose",
    "size": "bytes",
    "created": "created_at",
    "expires": "expires_at",
}


def _purpose(text: str) -> str:
    return checked_value(text, PURPOSES, "a purpose of a file")


FileId = Annotated[str, typer.Argument(metavar="FILE", help="Id of the file, as `files list` shows it")]


@app.command("list")
def list_(
    purpose: Annotated[
        Optional[str], typer.Option(parser=_purpose, metavar="PURPOSE", help=f"Only {' or '.join(PURPOSES)}")
    ] = None,
    tenant: DemoTenant = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List the files of the key's tenant, newest first."""
    with connect_as_tenant(url, key, tenant=tenant, model=None, as_json=as_json) as api:
        filters = {"purpose": purpose} if purpose else {}
        rows = [row for page in api.pages_after(FILES_PATH, filters) for row in page]
    if as_json:
        emit_json(rows)
    else:
        emit_table(_COLUMNS, [with_times(row) for row in rows], empty="There are no files.")


@app.command()
def show(file: FileId, tenant: DemoTenant = None, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Show a file."""
    with connect_as_tenant(url, key, tenant=tenant, model=None, as_json=as_json) as api:
        answer = api.call("GET", f"{FILES_PATH}{path_of(file)}")
    if as_json:
        emit_json(answer)
    else:
        emit_record(with_times(answer), tuple(_COLUMNS.values()))


@app.command()
def upload(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="JSON lines in OpenAI's form")],
    expires_in: Annotated[
        Optional[int],
        typer.Option(metavar="DURATION", parser=seconds, help="Time after which it is deleted: 1h to 30d"),
    ] = None,
    tenant: DemoTenant = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Upload the input of a batch, and print its id."""
    columns, console = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn()), stderr()
    with (
        reported(),
        connect_as_tenant(url, key, tenant=tenant, model=None, as_json=as_json) as api,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("Uploading", total=None)

        def sent(now: progress.Progress) -> None:
            bar.update(task, completed=now.done_bytes, total=now.total_bytes)

        answer = send(api, FileToSend(path, expires_in_s=expires_in), sent)
    if as_json:
        emit_json(answer)
    else:
        emit_line(read(File, answer).id)


@app.command()
def download(
    file: FileId,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="New file")],
    tenant: DemoTenant = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Download a file's content, which appears once its digest is checked."""
    if path.exists():
        fail(f"{path} exists already. Remove it, or give another path.", USAGE)
    with reported(), connect_as_tenant(url, key, tenant=tenant, model=None, as_json=as_json) as api:
        ServerBatches(api, note).download(file, path)
    if as_json:
        emit_json({"id": file, "path": str(path), "bytes": path.stat().st_size})
    else:
        emit_line(str(path))


@app.command()
def delete(
    file: FileId,
    yes: Yes = False,
    tenant: DemoTenant = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Delete a file. A file that an unfinished batch reads cannot be deleted."""
    if not yes:
        confirm(f"Delete the file {file}?")
    with connect_as_tenant(url, key, tenant=tenant, model=None, as_json=as_json) as api:
        answer = api.call("DELETE", f"{FILES_PATH}{path_of(file)}")
    if as_json:
        emit_json(answer)
    else:
        note(f"Deleted the file {file}. `tenora adapters deletions` shows when its bytes are gone everywhere.")
