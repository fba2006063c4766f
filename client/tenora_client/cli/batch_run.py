"""``tenora batch run``: run all lines of a file, and write their answers. The same command resumes a run."""

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Optional

import typer

from tenora_client.batches.inputs import Input, digest_of, write_requests
from tenora_client.batches.lines import CHAT, ENDPOINTS, BadInput
from tenora_client.batches.outputs import FORMATS, Written, check_target, write_output
from tenora_client.batches.requests import FINAL_STATES, batch_body
from tenora_client.batches.run_state import RunState, load_state, save_state, state_path
from tenora_client.batches.service import Backend, BatchService, ServerBatches, fetch_results
from tenora_client.cli.access import Access, resolve
from tenora_client.cli.arguments import seconds, tenant_name
from tenora_client.cli.batch_progress import BatchProgress, progress_of_batch
from tenora_client.cli.closed_values import checked_value
from tenora_client.cli.connection import Json, Key, Url, connect, tenant_key
from tenora_client.cli.output import FAILED, INTERRUPTED, USAGE, emit_json, emit_line, fail, note
from tenora_client.cli.plugins import offline_backend
from tenora_client.errors import Refused
from tenora_client.exporting import DamagedDownload
from tenora_client.types import Batch

#: Problems of lines that are printed. `tenora batch show` prints all.
_SHOWN_PROBLEMS = 20
_FIRST_POLL_S, _LONGEST_POLL_S = 0.2, 3.0


def _endpoint(text: str) -> str:
    return checked_value(text, ENDPOINTS, "an endpoint of a batch")


def _window(text: str) -> str:
    seconds(text)
    return text


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise typer.BadParameter(f"{text[:80]!r} is not valid metadata. Write NAME=VALUE.")
    return name, value


_Input = Annotated[
    Path,
    typer.Argument(
        metavar="INPUT",
        help="Lines of a batch, or objects with prompt or messages (.jsonl); a table (.csv, .parquet); else text with "
        "one prompt a line",
    ),
]
_Output = Annotated[
    Optional[Path],
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help=f"File for the answers: {', '.join(FORMATS)} (default: INPUT with .answers before its suffix)",
    ),
]
_Endpoint = Annotated[
    Optional[str],
    typer.Option(
        metavar="PATH", parser=_endpoint, help=f"Route of all lines: {', '.join(ENDPOINTS)} (default: {CHAT})"
    ),
]
_Window = Annotated[
    str, typer.Option(metavar="DURATION", parser=_window, help="Time after which lines are given up: 10m to 7d")
]
_Tenant = Annotated[
    Optional[str],
    typer.Option(
        "--tenant",
        metavar="TENANT",
        parser=tenant_name,
        help="Demo tenant whose key is used without --key; with --offline, the owner (default: the only tenant)",
    ),
]
_Metadata = Annotated[
    Optional[list[Any]],
    typer.Option("--metadata", metavar="NAME=VALUE", parser=_pair, help="Note at the batch; repeatable"),
]


@dataclass(frozen=True)
class _Plan:
    """Plan of a run.

    Attributes:
        fresh: state of a run that has not begun.
        body: the batch without its input file.
        scratch: folder for temporary files.
    """

    source: Input
    target: Path
    fresh: RunState
    body: dict[str, Any]
    scratch: Path

    @property
    def state_file(self) -> Path:
        return state_path(self.target)

    @property
    def requests(self) -> Path:
        return self.scratch / "requests.jsonl"


def run(
    path: _Input,
    model: Annotated[
        Optional[str], typer.Option(help="Model of lines that name none: ADAPTER, ADAPTER:ALIAS or ADAPTER@N")
    ] = None,
    output: _Output = None,
    endpoint: _Endpoint = None,
    column: Annotated[
        Optional[str], typer.Option(help="Column of a table with the prompts (default: prompt or text)")
    ] = None,
    max_tokens: Annotated[
        Optional[int], typer.Option(min=1, help="Maximum tokens of an answer, for lines that name none")
    ] = None,
    temperature: Annotated[
        Optional[float], typer.Option(min=0, help="Sampling temperature, for lines that name none; 0 is greedy")
    ] = None,
    window: _Window = "24h",
    width: Annotated[Optional[int], typer.Option(min=1, help="Most lines that run at once")] = None,
    metadata: _Metadata = None,
    cancel_on_interrupt: Annotated[
        bool, typer.Option("--cancel-on-interrupt", help="Cancel the batch at Ctrl-C instead of leaving it running")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Print the id of the batch, and do not wait")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Use the engine of this machine, without a server; needs its environment")
    ] = False,
    tenant: _Tenant = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Run all lines of a file, and write their answers in the same order.

    Run the same command again after an interruption: it finds its batch and goes on. A table keeps its columns and gets
    answer, finish_reason, prompt_tokens, output_tokens, error and model_version.
    """
    if offline and detach:
        fail("--detach needs a server, and --offline has none. Give one of them.", USAGE)
    notes = dict(metadata or [])
    arguments: dict[str, Any] = {
        "--model": model,
        "--column": column,
        "--max-tokens": max_tokens,
        "--temperature": temperature,
        "--window": window,
        "--width": width,
        "--metadata": notes,
    }
    with reported(), TemporaryDirectory(prefix="tenora-batch-") as scratch:
        source = Input.open(path, endpoint=endpoint, column=column, max_tokens=max_tokens, temperature=temperature)
        target = _target(path, output)
        check_target(target, source.columns)
        arguments |= {"--endpoint": source.options.endpoint}
        body = batch_body("", source.options.endpoint, window, model, width, notes)
        backend = _backend(offline, tenant, model, url, key, as_json=as_json)
        fresh = RunState(digest_of(path), arguments | {"server": backend.place})
        plan = _Plan(source, target, fresh, body, Path(scratch))
        state = _state(plan)
        if state.file_id is None:
            _convert(plan)
        with backend.service as service:
            with progress_of_batch(model or "") as display:
                batch = _Run(plan, service, display, cancel_on_interrupt).batch(state, detach=detach)
            if detach:
                _detached(plan, batch, as_json=as_json)
            else:
                _finish(plan, service, batch, as_json=as_json)


def _state(plan: _Plan) -> RunState:
    """Return the state of an earlier run, or that of a new one."""
    state = load_state(plan.state_file, plan.fresh)
    if state is None and plan.target.exists():
        fail(f"{plan.target} exists already. Remove it, or give another -o.", USAGE)
    return state or plan.fresh


def _convert(plan: _Plan) -> None:
    """Write the lines of the batch, before anything is sent."""
    with plan.requests.open("wb") as file:
        lines, skipped = write_requests(plan.source, file)
    if skipped:
        note(f"Rows without a prompt: {skipped}. They are not sent, and get an error in the output.")
    note(f"Lines to run: {lines}.")


class _Run:
    """Run of one batch: begin it or find it again, and wait for its end."""

    def __init__(self, plan: _Plan, service: BatchService, display: BatchProgress, cancel_on_interrupt: bool) -> None:
        self._plan, self._service, self._display = plan, service, display
        self._cancel_on_interrupt = cancel_on_interrupt

    def batch(self, state: RunState, *, detach: bool) -> Batch:
        """Return the batch, at its end if the run is not to detach."""
        begun: Optional[Batch] = None
        try:
            begun = self._begun(state)
            return begun if detach else self._followed(begun)
        except KeyboardInterrupt:
            if begun is not None and self._cancel_on_interrupt and not self._service.goes_on:
                # Without a server, no later command could write the output.
                note(f"Cancelling the batch {begun.id}.")
                return self._followed(self._cancelled(begun))
            self._interrupted(begun)
            raise typer.Exit(INTERRUPTED) from None

    def _begun(self, state: RunState) -> Batch:
        if state.batch_id is not None:
            note(f"Going on with the batch {state.batch_id}.")
            return self._found(state.batch_id)
        if state.file_id is None:
            file = self._service.upload(self._plan.requests, f"{self._plan.source.path.stem}.jsonl", self._display.sent)
            state = replace(state, file_id=file.id)
            save_state(self._plan.state_file, state)
            batch = self._created(file.id)
        else:
            # The earlier run may have created the batch, and been killed before it noted the id.
            batch = self._service.find(state.file_id) or self._created(state.file_id)
        save_state(self._plan.state_file, replace(state, batch_id=batch.id))
        return batch

    def _found(self, batch_id: str) -> Batch:
        try:
            return self._service.show(batch_id)
        except Refused as refused:
            if refused.status == 404:
                fail(
                    f"The batch {batch_id} of {self._plan.state_file} does not exist for this key. Use a key of its "
                    "tenant, or remove that file to start a new batch."
                )
            raise

    def _created(self, file_id: str) -> Batch:
        try:
            return self._service.create({**self._plan.body, "input_file_id": file_id})
        except Refused:
            # Leave nothing behind: the next run may have other arguments.
            self._plan.state_file.unlink(missing_ok=True)
            with suppress(Refused):
                self._service.delete(file_id)
            raise

    def _followed(self, batch: Batch) -> Batch:
        pause_s = _FIRST_POLL_S
        while True:
            self._display.show(batch)
            if batch.status in FINAL_STATES:
                return batch
            time.sleep(pause_s)
            pause_s = min(1.3 * pause_s, _LONGEST_POLL_S)
            batch = self._service.show(batch.id)

    def _cancelled(self, batch: Batch) -> Batch:
        try:
            return self._service.cancel(batch.id)
        except Refused:
            return batch  # it has ended meanwhile

    def _interrupted(self, batch: Optional[Batch]) -> None:
        if batch is None:
            note("Interrupted. Run the same command again to go on.")
        elif self._cancel_on_interrupt:
            self._cancelled(batch)
            self._plan.state_file.unlink(missing_ok=True)
            note(f"Cancelled the batch {batch.id}. Lines that are done are kept and charged.")
            note(f"`tenora batch download {batch.id} -o {self._plan.target}` writes their answers.")
        elif not self._service.goes_on:
            note(f"Interrupted. Run the same command again to go on with the batch {batch.id}.")
        else:
            note(f"Interrupted. The batch {batch.id} goes on.")
            _note_commands(self._plan, batch)


def _note_commands(plan: _Plan, batch: Batch) -> None:
    note(f"`tenora batch watch {batch.id}` shows its progress.")
    note(f"`{shlex.join(['tenora', *sys.argv[1:]])}` waits for it, and writes {plan.target}.")


def _detached(plan: _Plan, batch: Batch, *, as_json: bool) -> None:
    _note_commands(plan, batch)
    if as_json:
        emit_json(batch.to_dict())
    else:
        emit_line(batch.id)


def _finish(plan: _Plan, service: BatchService, batch: Batch, *, as_json: bool) -> None:
    """Write the output of a batch that has ended. End the command with 1 if a line has no answer."""
    if batch.status == "failed":
        plan.state_file.unlink(missing_ok=True)
        _report_problems(plan.source, batch)
    written = write_output(plan.source, fetch_results(service, batch, plan.scratch), plan.target)
    plan.state_file.unlink(missing_ok=True)
    if as_json:
        emit_json(
            {**batch.to_dict(), "output": str(plan.target), "lines": written.lines, "lines_failed": written.failed}
        )
    else:
        emit_line(str(plan.target))
    _summarize(batch, written)


def _summarize(batch: Batch, written: Written) -> None:
    answered = f"{written.lines - written.failed} of {written.lines} lines have an answer"
    note(f"{answered}, {batch.usage.output_tokens:,} output tokens, cost {batch.tenora.cost}.")
    if batch.status != "completed":
        fail(f"The batch {batch.id} is {batch.status}: its other lines did not run.")
    if written.failed:
        fail(f"Lines without an answer: {written.failed}. The output has the reason of each.")


def _report_problems(source: Input, batch: Batch) -> None:
    """End the command with the problems of the input, by line numbers of the input."""
    problems = batch.errors.data if batch.errors else []
    if len(problems) == 1 and problems[0].line is None:
        fail(f"No line ran. {problems[0].message}")
    lines = {problem.line for problem in problems[:_SHOWN_PROBLEMS] if problem.line}
    sent = (item.number for item in source.items() if item.request is not None)
    numbers = {line: number for line, number in enumerate(sent, 1) if line in lines}
    word = "Row" if source.column else "Line"
    for problem in problems[:_SHOWN_PROBLEMS]:
        where = f"{word} {numbers.get(problem.line or 0, problem.line)}: " if problem.line else ""
        note(f"- {where}{problem.message}")
    if len(problems) > _SHOWN_PROBLEMS:
        note(f"`tenora batch show {batch.id}` shows all {len(problems)} problems.")
    fail("No line ran. Correct the input, then run the command again." if lines else "No line ran.")


def _target(path: Path, output: Optional[Path]) -> Path:
    if output is None:
        suffix = path.suffix.lower()
        output = path.with_name(f"{path.stem}.answers{suffix if suffix in FORMATS else FORMATS[0]}")
    if not output.parent.is_dir():
        fail(f"The folder {output.parent} does not exist. Create it, or give another -o.", USAGE)
    if output.resolve() == path.resolve():
        fail(f"{output} is the input. Give another -o.", USAGE)
    if not os.access(output.parent, os.W_OK):
        fail(f"No file can be written in {output.parent}. Give another -o.", USAGE)
    return output


def _backend(
    offline: bool, tenant: Optional[str], model: Optional[str], url: Optional[str], key: Optional[str], *, as_json: bool
) -> Backend:
    """Choose the backend of the batch."""
    if offline:
        return offline_backend(tenant)
    access = resolve(url, key, lambda demo: tenant_key(demo, tenant, model))
    return Backend(access.url, _server(access, as_json=as_json))


@contextmanager
def _server(access: Access, *, as_json: bool) -> Iterator[BatchService]:
    with connect(access, as_json=as_json) as api:
        yield ServerBatches(api, note)


@contextmanager
def reported() -> Iterator[None]:
    """End the command with one sentence if a file cannot be used."""
    try:
        yield
    except BadInput as error:
        fail(str(error), USAGE)
    except DamagedDownload as error:
        fail(str(error), FAILED)
    except OSError as error:
        fail(f"Cannot use {error.filename}: {error.strerror or error}.", USAGE)
