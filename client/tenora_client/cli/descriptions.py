"""Show, change and filter by the description of a version."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Optional, Union

import typer

from tenora_client.cli.arguments import TenantOption, VersionArgument
from tenora_client.cli.closed_values import checked_value
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.invocation import current
from tenora_client.cli.output import USAGE, clean_prose, emit_json, emit_record, fail, note
from tenora_client.transport import adapters_path

_RECORD = ("name", "state", "state_reason", "rank", "size_bytes", "aliases", "labels", "created_at", "digest")
_PROVENANCE = (
    "uploaded_by",
    "uploaded_from",
    "source",
    "training_run",
    "peft_version",
    "alpha",
    "target_modules",
    "parameters",
    "dtype",
)

STATES = ("validating", "ready", "rejected", "quarantined", "retired")


def _state(text: str) -> str:
    return checked_value(text, STATES, "a state of a version")


LabelFilters = Annotated[
    Optional[list[str]], typer.Option("--label", metavar="NAME=VALUE", help="Only with this label; repeatable")
]
StateFilter = Annotated[
    Optional[str],
    typer.Option("--state", metavar="STATE", parser=_state, help=f"Only in this state: {', '.join(STATES)}"),
]
BaseFilter = Annotated[Optional[str], typer.Option("--base", help="Only checked against this base: its name or digest")]

_Text = Annotated[
    Optional[Path], typer.Option(exists=True, dir_okay=False, allow_dash=True, help="File with the card; - reads stdin")
]


def list_filters(
    labels: Optional[list[str]], state: Optional[str], base: Optional[str]
) -> dict[str, Union[str, list[str]]]:
    """Query parameters of a filtered list."""
    filters: dict[str, Optional[Union[str, list[str]]]] = {"label": labels, "state": state, "base": base}
    return {name: value for name, value in filters.items() if value}


def with_alias_words(adapter: dict[str, Any]) -> dict[str, Any]:
    """Return an adapter with its aliases as text: ``2``, or ``2 (5), 1 (95)`` for a split by weight."""
    return adapter | {"aliases": {alias: _targets(targets) for alias, targets in adapter["aliases"].items()}}


def show_version(version: dict[str, Any]) -> None:
    """Print a version for people: its fields, its warnings, then its card as plain text."""
    provenance = version.get("provenance") or {}
    base = provenance.get("base") or {}
    record = {
        **version,
        **provenance,
        "source": (provenance.get("source") or {}).get("kind"),
        "base": f"{base['name']} {base['digest']}" if base else None,
    }
    emit_record(record, (*_RECORD, "base", *_PROVENANCE))
    for warning in version.get("warnings") or ():
        note(f"warning: {warning}")
    if version.get("card"):
        sys.stdout.write(f"\n{clean_prose(version['card'])}\n")


def show_published(version: dict[str, Any]) -> None:
    """Print a version that was just published, and the names that resolve to it."""
    show_version(version)
    adapter, name, aliases = version["adapter"], version["name"], version["aliases"]
    tenant = current().arguments.get("tenant")
    named = f"{name} --tenant {tenant}" if tenant else name
    promote = f"`tenora adapters promote {named}`"
    if version["state"] == "validating":
        note(f"The smoke check of {name} has not ended. `tenora adapters show {named}` shows its state.")
    if version["state"] != "ready":
        return
    note(f"{name} passed the validation of its files and the smoke check on the engine.")
    if "default" in aliases:
        note(f"Requests for {adapter!r} now go to {name}.")
    elif aliases:
        models = ", ".join(f"'{adapter}:{alias}'" for alias in aliases)
        note(f"Requests for {models} now go to {name}. Run {promote} to send requests for {adapter!r} there too.")
    else:
        note(f"No alias points to {name} yet. Ask for {name!r}, or run {promote} to send {adapter!r} to it.")


def describe(
    version: VersionArgument,
    tenant: TenantOption = None,
    label: Annotated[
        Optional[list[str]],
        typer.Option("--label", metavar="NAME=VALUE", help="New label; repeatable. The options replace all labels."),
    ] = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Remove all labels")] = False,
    card: _Text = None,
    training_run: Annotated[Optional[str], typer.Option(help="Link to the training run; empty removes it")] = None,
    defaults: Annotated[
        Optional[Path],
        typer.Option(
            exists=True, dir_okay=False, allow_dash=True, help="JSON file with defaults of requests; - reads stdin"
        ),
    ] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Replace a version's labels, card, training-run link or defaults."""
    name, _, number = version.partition("@")
    changes: dict[str, Any] = {}
    if label or no_labels:
        changes["labels"] = read_labels(label or [])
    if card is not None:
        changes["card"] = read_text(card)
    if training_run is not None:
        changes["training_run"] = training_run or None
    if defaults is not None:
        changes["defaults"] = read_object(defaults)
    if not number or not changes:
        fail("Give ADAPTER@N and a change: --label, --no-labels, --card, --training-run or --defaults.", USAGE)
    with connect_as_admin(url, key, as_json=as_json) as api:
        record = api.call("PATCH", adapters_path(tenant, name, "versions", number), changes)
    if as_json:
        emit_json(record)
    else:
        show_version(record)


def _targets(targets: dict[str, int]) -> str:
    numbers = sorted(targets, key=int, reverse=True)
    return numbers[0] if len(numbers) == 1 else ", ".join(f"{number} ({targets[number]})" for number in numbers)


def read_labels(texts: list[str]) -> dict[str, str]:
    """Parse ``--label NAME=VALUE`` options. End the command on anything else."""
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"--label is {text!r}. Write NAME=VALUE.", USAGE)
        labels[name] = value
    return labels


def read_text(path: Path) -> str:
    """Read the text of a file, or of stdin for ``-``. End the command if it cannot be read."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"Cannot read {path}: {error}.", USAGE)


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file. End the command on anything else."""
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        fail(f"{path} is not valid JSON: {error}.", USAGE)
    if not isinstance(value, dict):
        fail(f"{path} holds JSON of type {type(value).__name__}. Write a JSON object.", USAGE)
    return value
