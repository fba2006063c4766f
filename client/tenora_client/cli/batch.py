"""``tenora batch``: run many requests from a file, and follow them."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Optional

import typer

from tenora_client.answers import read
from tenora_client.batches.outputs import FORMATS, check_target, write_results
from tenora_client.batches.requests import BATCHES_PATH, FINAL_STATES
from tenora_client.batches.service import ServerBatches, fetch_results
from tenora_client.cli.batch_progress import progress_of_batch, stage_of
from tenora_client.cli.batch_run import reported, run
from tenora_client.cli.cells import with_times
from tenora_client.cli.closed_values import checked_value
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin, connect_as_tenant
from tenora_client.cli.generate import DemoTenant
from tenora_client.cli.output import INTERRUPTED, USAGE, emit_json, emit_line, emit_record, emit_table, fail, note
from tenora_client.transport import path_of
from tenora_client.types import Batch

app = typer.Typer(no_args_is_help=True, help="Batches: many requests from a file, at a lower priority.")
app.command("run")(run)

_COLUMNS = {
    "id": "id",
    "state": "state",
    "lines": "total",
    "done": "completed",
    "failed": "failed",
    "endpoint": "endpoint",
    "created": "created_at",
    "expires": "expires_at",
}
_RECORD = (
    *("id", "state", "total", "completed", "failed", "endpoint", "model", "width", "completion_window"),
    *(
        "input_tokens",
        "output_tokens",
        "most_output_tokens",
        "cost",
        "most_cost",
        "reason",
        "created_at",
        "expected_at",
    ),
    *("expires_at", "ended_at", "metadata", "input_file_id", "output_file_id", "error_file_id"),
)
#: States in which a batch can be, for the filter of a list.
STATES = (*("validating", "in_progress", "finalizing", "completed", "failed", "cancelling", "cancelled", "expired"),)
_POLL_S = 1.0


def _state(text: str) -> str:
    return checked_value(text, STATES, "a state of a batch")


BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="Id of the batch, as `batch list` shows it")]
_Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help=f"File for the answers: {', '.join(FORMATS)}")
]


@app.command("list")
def list_(
    platform: Annotated[
        bool, typer.Option("--platform", help="List the batches of all tenants, or of --tenant. Needs a platform key.")
    ] = False,
    state: Annotated[
        Optional[str],
        typer.Option(parser=_state, metavar="STATE", help=f"With --platform, only in this state: {', '.join(STATES)}"),
    ] = None,
    tenant: DemoTenant = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List the batches of the key's tenant, newest first."""
    if state and not platform:
        fail("--state needs --platform, which lists the batches of all tenants.", USAGE)
    filters = {name: value for name, value in (("tenant", tenant), ("state", state)) if value and platform}
    if platform:
        opened, path = connect_as_admin(url, key, as_json=as_json), path_of("admin", "batches")
    else:
        opened, path = connect_as_tenant(url, key, tenant=tenant, model=None, as_json=as_json), BATCHES_PATH
    with opened as api:
        rows = [row for page in api.pages_after(path, filters) for row in page]
    if as_json:
        emit_json(rows)
        return
    columns = {"id": "id", "tenant": "tenant", **_COLUMNS} if platform else _COLUMNS
    emit_table(columns, [_counted(row, row["status"]) for row in rows], empty="There are no batches.")


@app.command()
def show(batch: BatchId, tenant: DemoTenant = None, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Show a batch: its progress, its quote, and the problems of its lines."""
    with connect_as_tenant(url, key, tenant=tenant, model=None, as_json=as_json) as api:
        answer = api.call("GET", _path(batch))
        shown = read(Batch, answer)
    if as_json:
        emit_json(answer)
        return
    emit_record(_row(shown), _RECORD)
    for warning in shown.tenora.warnings:
        note(f"warning: {warning}")
    for problem in shown.errors.data if shown.errors else ():
        note(f"- {f'Line {problem.line}: ' if problem.line else ''}{problem.message}")
    if shown.output_file_id or shown.error_file_id:
        note(f"`tenora batch download {shown.id} -o FILE` writes its answers.")


@app.command()
def watch(batch: BatchId, tenant: DemoTenant = None, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Follow a batch to its end. The exit code is 0 if every line has an answer."""
    with connect_as_tenant(url, key, tenant=tenant, model=None, as_json=as_json) as api:
        service = ServerBatches(api, note)
        try:
            with progress_of_batch("") as display:
                while True:
                    shown = service.show(batch)
                    display.show(shown)
                    if shown.status in FINAL_STATES:
                        break
                    time.sleep(_POLL_S)
        except KeyboardInterrupt:
            note(f"Interrupted. The batch {batch} goes on. `tenora batch cancel {batch}` ends it.")
            raise typer.Exit(INTERRUPTED) from None
    row = _row(shown)
    if as_json:
        emit_json(shown.to_dict())
    else:
        emit_line(f"{shown.id} {shown.status}: {row['completed']} of {row['total']} lines have an answer")
    if shown.output_file_id or shown.error_file_id:
        note(f"`tenora batch download {shown.id} -o FILE` writes its answers.")
    if shown.status != "completed" or row["failed"]:
        raise typer.Exit(1)


@app.command()
def cancel(batch: BatchId, tenant: DemoTenant = None, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Cancel a batch. Lines that are done are kept and charged."""
    with connect_as_tenant(url, key, tenant=tenant, model=None, as_json=as_json) as api:
        answer = api.call("POST", f"{_path(batch)}/cancel")
        shown = read(Batch, answer)
    if as_json:
        emit_json(answer)
    else:
        note(f"The batch {shown.id} is {shown.status}. `tenora batch watch {shown.id}` waits for its end.")


@app.command()
def download(
    batch: BatchId,
    output: _Output,
    tenant: DemoTenant = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Write the answers of a batch that has ended: first the answers, in the order of the input, then the errors."""
    if output.exists():
        fail(f"{output} exists already. Remove it, or give another -o.", USAGE)
    with reported(), connect_as_tenant(url, key, tenant=tenant, model=None, as_json=as_json) as api:
        check_target(output, ("custom_id",))
        service = ServerBatches(api, note)
        shown = service.show(batch)
        if shown.status not in FINAL_STATES:
            fail(f"The batch {batch} is {shown.status}. `tenora batch watch {batch}` waits for its end.")
        with TemporaryDirectory(prefix="tenora-batch-") as scratch:
            written = write_results(fetch_results(service, shown, Path(scratch)), output)
    if as_json:
        emit_json({"batch": batch, "output": str(output), "lines": written.lines, "lines_failed": written.failed})
    else:
        emit_line(str(output))
    note(f"{written.lines - written.failed} of {written.lines} lines have an answer.")


def _path(batch: str) -> str:
    return f"{BATCHES_PATH}{path_of(batch)}"


def _row(batch: Batch) -> dict[str, Any]:
    """Return a batch as cells of a table."""
    more, ended = batch.tenora, (batch.completed_at, batch.failed_at, batch.expired_at, batch.cancelled_at)
    quote = more.quote
    return _counted(batch.to_dict(), stage_of(batch)) | with_times(
        {
            "model": more.model,
            "width": more.width,
            "cost": more.cost,
            "expected_at": more.expected_at,
            "most_cost": None if quote is None else quote.most_cost,
            "most_output_tokens": None if quote is None else quote.most_output_tokens,
            "reason": None if more.reason is None else more.reason.message,
            "ended_at": next((at for at in ended if at), None),
        }
    )


def _counted(row: dict[str, Any], state: str) -> dict[str, Any]:
    """Return the server's row with its counts on the level of the other fields."""
    return with_times({**row, **row["request_counts"], **row["usage"], "state": state})
