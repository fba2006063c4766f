"""``tenora adapters validate``: check an adapter before its upload. Only its config and the weights' header go out."""

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from tenora_client.cli.arguments import TenantOption, adapter_name
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.output import FAILED, USAGE, emit_json, emit_record, emit_table, fail, note
from tenora_client.cli.plugins import offline_checks
from tenora_client.cli.push import report_file_errors
from tenora_client.folders import CONFIG_FILE, WEIGHTS_FILE, NoAdapter, find_adapter, weights_of
from tenora_client.transport import Api, adapters_path

_LENGTH_BYTES = 8
#: The longest header that a server accepts. A longer one is refused by its length alone.
_MAX_HEADER_BYTES = 2**20
#: Caps of the route on names of other files.
_MAX_FILES, _MAX_NAME = 1000, 255

_REASONS = {"where": "field", "reason": "message"}
_RECORD = ("rank", "alpha", "target_modules", "modules", "saved_modules", "parameters", "dtype", "size_bytes")

_Folder = Annotated[Path, typer.Argument(metavar="PATH", help=f"Folder with {CONFIG_FILE} and {WEIGHTS_FILE}")]
_Base = Annotated[
    Optional[Path],
    typer.Option(
        exists=True,
        file_okay=False,
        help="Folder of the base: check here, without a server. Needs the server's environment.",
    ),
]
_Name = Annotated[
    Optional[str],
    typer.Option("--adapter", metavar="ADAPTER", parser=adapter_name, help="Name to check too, for the upload"),
]


def validate(
    path: _Folder,
    adapter: _Name = None,
    base: _Base = None,
    max_lora_rank: Annotated[
        int, typer.Option("--max-lora-rank", min=1, help="With --base: largest rank that the server accepts")
    ] = 64,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Check whether a server would accept an adapter, and print every reason against it. Nothing is stored.

    Exits with 1 if it would be refused, and with 2 if the folder cannot be read.
    """
    with report_file_errors():
        folder = _found(path)
        if base is not None:
            verdict = _offline(folder, base, max_lora_rank)
        else:
            form = _form(folder, adapter)
            with connect_as_admin(url, key, as_json=as_json) as api:
                verdict = _ask(api, tenant, form)
    if as_json:
        emit_json(verdict)
    else:
        _show(verdict, folder, adapter)
    if not verdict["valid"]:
        raise typer.Exit(FAILED)


def _found(path: Path) -> Path:
    folder = find_adapter(path)
    if not folder.is_dir():
        raise NoAdapter(f"{path} is an archive. Unpack it and validate its folder.")
    if folder != path:
        note(f"Checking the adapter in {folder}.")
    weights_of(folder)
    return folder


def _form(folder: Path, adapter: Optional[str]) -> dict[str, bytes]:
    """Read the parts of the request.

    Raises:
        OSError: a file cannot be read.
    """
    weights = folder / WEIGHTS_FILE
    with weights.open("rb") as file:
        head = file.read(_LENGTH_BYTES)
        length = int.from_bytes(head, "little")
        head += file.read(length) if length <= _MAX_HEADER_BYTES else b""
        size = file.seek(0, 2)
    names = sorted(entry.name for entry in folder.iterdir() if entry.name not in (CONFIG_FILE, WEIGHTS_FILE))
    options = {
        "weights_bytes": size,
        "adapter": adapter,
        "files": [name for name in names if len(name) <= _MAX_NAME][:_MAX_FILES],
    }
    return {
        CONFIG_FILE: (folder / CONFIG_FILE).read_bytes(),
        WEIGHTS_FILE: head,
        "options": json.dumps(options).encode(),
    }


def _ask(api: Api, tenant: Optional[str], form: dict[str, bytes]) -> dict[str, Any]:
    verdict: dict[str, Any] = api.upload(
        adapters_path(tenant, "validate"), {name: BytesIO(content) for name, content in form.items()}
    )
    return verdict


def _offline(folder: Path, base: Path, max_lora_rank: int) -> dict[str, Any]:
    checks = offline_checks()
    if not checks:
        fail(
            "--base needs the server's environment, which is not installed here. Leave it out to ask a server, or run "
            "`make environment` in a checkout of Tenora.",
            USAGE,
        )
    try:
        reasons = [row for check in checks for row in check(folder, base, max_lora_rank)]
    except ValueError as error:
        fail(f"{base} is not a base that can be checked against: {error}", USAGE)
    return {"valid": not reasons, "reasons": reasons, "version": None, "warnings": [], "ignored": []}


def _show(verdict: dict[str, Any], folder: Path, adapter: Optional[str]) -> None:
    reasons: Sequence[dict[str, Any]] = verdict["reasons"]
    if reasons:
        emit_table(_REASONS, reasons, empty="")
        count = f"{len(reasons)} reasons" if len(reasons) > 1 else "one reason"
        note(f"The server would refuse {folder} for {count}. Mend what the table names, then validate again.")
        return
    if verdict["version"]:
        emit_record({**verdict["version"], "size_bytes": verdict.get("size_bytes")}, _RECORD)
    for warning in verdict["warnings"]:
        note(f"warning: {warning}")
    if verdict["ignored"]:
        note(f"Not part of a version: {', '.join(verdict['ignored'])}.")
    note(f"No reason against {folder}. Publish it: `tenora adapters push {folder} --adapter {adapter or 'NAME'}`.")
