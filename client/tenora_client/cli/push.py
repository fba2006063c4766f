"""``tenora adapters push``: upload a folder or an archive as an adapter's next version."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Optional

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from tenora_client.cli.arguments import AdapterName, TenantOption, named
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.descriptions import read_labels, read_object, read_text, show_published
from tenora_client.cli.output import (
    FAILED,
    INTERRUPTED,
    USAGE,
    emit_json,
    emit_json_error,
    fail,
    note,
    show_reasons,
    stderr,
)
from tenora_client.cli.plugins import precheck
from tenora_client.digests import template_digest
from tenora_client.folders import CONFIG_FILE, WEIGHTS_FILE, NoAdapter, find_adapter, weights_of
from tenora_client.pickles import UnreadableWeights, convert_weights
from tenora_client.transport import adapters_path
from tenora_client.upload import Sender, Source, bytes_there

_ARCHIVE = "archive"
_MIB = 2**20
#: Columns of a progress bar that needs no total.
_WORDS_AND_BAR = 2

_Files = Annotated[
    Path,
    typer.Argument(metavar="PATH", help=f"Folder with {CONFIG_FILE} and {WEIGHTS_FILE}, or a .tar.gz or .zip of it"),
]
_Text = Annotated[
    Optional[Path], typer.Option(exists=True, dir_okay=False, allow_dash=True, help="File with the card; - reads stdin")
]
_Object = Annotated[
    Optional[Path],
    typer.Option(
        exists=True, dir_okay=False, allow_dash=True, help="JSON file with defaults of requests; - reads stdin"
    ),
]
_Labels = Annotated[
    Optional[list[str]], typer.Option("--label", metavar="NAME=VALUE", help="Label of the new version; repeatable")
]
_Alias = Annotated[str, typer.Option(help="Alias to move to the new version; empty for none")]


def push(
    path: _Files,
    adapter: AdapterName = None,
    alias: _Alias = "default",
    label: _Labels = None,
    card: _Text = None,
    training_run: Annotated[Optional[str], typer.Option(help="Link to the training run")] = None,
    defaults: _Object = None,
    allow_no_effect: Annotated[
        bool, typer.Option("--allow-no-effect", help="Accept a version that answers exactly as the base does")
    ] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return before the smoke check ends")] = False,
    part_mb: Annotated[
        Optional[float], typer.Option(min=0.25, max=64, help="Size of a part in MiB (default: the server's choice)")
    ] = None,
    through_server: Annotated[
        bool, typer.Option("--through-server", help="Send all bytes through the server, none directly to its store")
    ] = False,
    convert: Annotated[
        bool, typer.Option("--convert", help="Convert a .bin with weights to safetensors on this machine; needs torch")
    ] = False,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Upload a folder or an archive as the adapter's next version.

    The files are checked before any of them is sent. An interrupted upload resumes when the command runs again.
    """
    adapter = named(adapter, f"push {path}")
    options = _options(alias, label, card, training_run, defaults, allow_no_effect=allow_no_effect, no_wait=no_wait)
    part_bytes = None if part_mb is None else int(part_mb * _MIB)
    with (
        connect_as_admin(url, key, as_json=as_json) as api,
        TemporaryDirectory(prefix="tenora-push-") as scratch,
        _progress() as bar,
        report_file_errors(),
    ):
        source = _find(path, convert=convert)
        files = _checked_files(source, Path(scratch), bar, convert=convert, as_json=as_json)
        sent = _upload_bar(bar, sum(file.size for file in files.values()))
        uploads = adapters_path(tenant, adapter, "uploads")
        sender = Sender(api, uploads, files, through_server=through_server, sent=sent)
        with _report_interrupt():
            version, upload = _send(sender, options, part_bytes)
    _note_template(source, upload, version, defaults=options.get("defaults", {}))
    if as_json:
        emit_json(version)
    else:
        show_published(version)


def _upload_bar(bar: "_Bar", total: int) -> Callable[[int], None]:
    """Start the bar of the upload, and return its advance function. A bar of the server's checks follows it."""
    advance, arrived = bar("Uploading", total), 0

    def count(size: int) -> None:
        nonlocal advance, arrived
        advance(size)
        arrived += size
        if arrived == total:
            advance = bar("Checking: validation and smoke check", None)

    return count


def _find(path: Path, *, convert: bool) -> Path:
    """Find the folder or archive to push, and print a note if it is not ``path`` itself."""
    source = find_adapter(path, convert=convert)
    if source != path:
        note(f"Pushing the adapter in {source}.")
    return source


def _checked_files(source: Path, scratch: Path, bar: "_Bar", *, convert: bool, as_json: bool) -> dict[str, Source]:
    """Convert the files if needed, check them and hash them."""
    paths = _files(source, scratch, convert=convert)
    _check(paths, as_json=as_json)
    advance = bar("Reading", sum(path.stat().st_size for path in paths.values()))
    return {name: Source.read(path, advance) for name, path in paths.items()}


def _send(sender: Sender, options: dict[str, Any], part_bytes: Optional[int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Send the files, resuming an earlier upload if one matches.

    Returns:
        The version, and the upload that became it.
    """

    def tell(upload: Mapping[str, Any]) -> None:
        note(f"Resuming upload {upload['id']}. The server has {bytes_there(upload)} bytes already.")

    return sender.publish(options, part_bytes, tell)


def _check(paths: dict[str, Path], *, as_json: bool) -> None:
    """End the command before the upload if no server would accept the files."""
    if CONFIG_FILE not in paths:
        return
    reasons = precheck(paths[CONFIG_FILE], paths[WEIGHTS_FILE])
    if not reasons:
        return
    rows = [reason.shown() for reason in reasons]
    more = f" Number of further reasons: {len(reasons) - 1}." if len(reasons) > 1 else ""
    message = f"{reasons[0].message}{more}"
    if as_json:
        fields = {"type": "invalid_request_error", "param": None, "code": "adapter_rejected"}
        emit_json_error({"error": {"message": message, **fields, "reasons": rows}})
        raise typer.Exit(FAILED)
    if len(reasons) > 1:
        show_reasons(rows)
    fail(f"{message} Nothing was sent.", FAILED)


def _note_template(
    folder: Path, upload: Mapping[str, Any], version: Mapping[str, Any], *, defaults: Mapping[str, Any]
) -> None:
    """Print a note if the folder has a chat template that differs from the base's and is not used."""
    digest, base = template_digest(folder), upload.get("base")
    if digest is None or base is None or digest == base["chat_template_sha256"] or "chat_template" in defaults:
        return
    note(
        f"The folder's chat template differs from that of the base {base['name']} and is not used. An operator can set "
        f"it with a platform key: `tenora adapters describe {version['name']} --defaults FILE`, where FILE is "
        '{"chat_template": "..."}.'
    )


def _options(
    alias: str,
    label: Optional[list[str]],
    card: Optional[Path],
    training_run: Optional[str],
    defaults: Optional[Path],
    *,
    allow_no_effect: bool,
    no_wait: bool,
) -> dict[str, Any]:
    """Build the upload's options. Omitted ones are left to the server."""
    options: dict[str, Any] = {}
    if alias != "default":
        options["alias"] = alias or None
    if label:
        options["labels"] = read_labels(label)
    if card is not None:
        options["card"] = read_text(card)
    if training_run:
        options["training_run"] = training_run
    if defaults is not None:
        options["defaults"] = read_object(defaults)
    if allow_no_effect:
        options["allow_no_effect"] = True
    if no_wait:
        options["wait"] = False
    return options


def _files(source: Path, scratch: Path, *, convert: bool) -> dict[str, Path]:
    """Return the files to send by name. Weights in a pickle are converted into the scratch folder first."""
    if not source.is_dir():
        if convert:
            raise NoAdapter(f"{source} is an archive. Unpack it and push its folder with --convert.")
        return {_ARCHIVE: source}
    weights = weights_of(source)
    if weights.name != WEIGHTS_FILE:
        note(f"Converting {weights}.")
        convert_weights(weights, scratch / WEIGHTS_FILE)
        weights = scratch / WEIGHTS_FILE
    return {CONFIG_FILE: source / CONFIG_FILE, WEIGHTS_FILE: weights}


@contextmanager
def report_file_errors() -> Iterator[None]:
    """End the command if a file cannot be read."""
    try:
        yield
    except (NoAdapter, UnreadableWeights) as error:
        fail(str(error), USAGE)
    except OSError as error:
        fail(f"Cannot read {error.filename}: {error.strerror}.", USAGE)


@contextmanager
def _report_interrupt() -> Iterator[None]:
    """End the command at Ctrl-C. The server keeps the parts that have arrived."""
    try:
        yield
    except KeyboardInterrupt:
        note("Interrupted. Run the same command again to resume.")
        raise typer.Exit(INTERRUPTED) from None


_Bar = Callable[[str, Optional[int]], Callable[[int], None]]


@contextmanager
def _progress() -> Iterator[_Bar]:
    """Yield a function that starts a progress bar and returns the bar's advance function.

    It replaces the bar before. A bar without a total only moves.
    """
    columns = "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    console = stderr()
    # In a pipe it would end with an empty line.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def bar(description: str, total: Optional[int]) -> Callable[[int], None]:
            progress.refresh()  # shows the end of a bar that was fast
            for task in progress.task_ids:
                progress.remove_task(task)
            progress.columns = columns if total is not None else columns[:_WORDS_AND_BAR]
            task = progress.add_task(description, total=total)
            return lambda size: progress.advance(task, size)

        yield bar
