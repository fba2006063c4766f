"""``tenora adapters import``: publish a version from the Hugging Face Hub, from S3 or from a local folder."""

import re
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from tenora_client.cli.arguments import AdapterName, TenantOption, named
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.descriptions import read_labels, show_published
from tenora_client.cli.output import USAGE, emit_json, fail
from tenora_client.cli.push import push
from tenora_client.transport import adapters_path

_REMOTE = ("hf://", "s3://")
_WEB = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)", re.ASCII)
_HUB = re.compile(r"hf://([\w.-]+/[\w.-]+?)(?:@([^/]*))?(?:/.*)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)

_Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="hf://ORG/REPOSITORY@COMMIT (or .../SUBFOLDER) or s3://bucket/prefix/, which the server fetches, "
        "or a local folder or archive to push",
    ),
]
_Alias = Annotated[str, typer.Option(help="Alias to move to the new version; empty for none")]
_Labels = Annotated[
    Optional[list[str]], typer.Option("--label", metavar="NAME=VALUE", help="Label of the new version; repeatable")
]
_AllowNoEffect = Annotated[
    bool, typer.Option("--allow-no-effect", help="Accept a version that answers exactly as the base does")
]
_NoWait = Annotated[bool, typer.Option("--no-wait", help="Return before the smoke check ends")]


def import_(
    source: _Source,
    adapter: AdapterName = None,
    alias: _Alias = "default",
    label: _Labels = None,
    allow_no_effect: _AllowNoEffect = False,
    no_wait: _NoWait = False,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Import an adapter as the next version."""
    adapter = named(adapter, f"import {source}")
    server: dict[str, Any] = {"tenant": tenant, "url": url, "key": key, "as_json": as_json}
    if not source.startswith(_REMOTE):
        _check_there(source)
        push(
            Path(source),
            adapter,
            alias=alias,
            label=label,
            allow_no_effect=allow_no_effect,
            no_wait=no_wait,
            **server,
        )
        return
    options: dict[str, Any] = {
        "alias": alias or None,
        "labels": read_labels(label or []),
        "allow_no_effect": allow_no_effect,
        "wait": not no_wait,
    }
    _check_address(source)
    _import_there(source, adapter, options, **server)


def _check_there(source: str) -> None:
    """End the command if the source is neither a local path nor an address that the server fetches."""
    if Path(source).exists():
        return
    if match := _WEB.match(source):
        repository = match[1]
        fail(f"{source} is a web address. Write hf://{repository}@COMMIT instead. {_commit(repository)}", USAGE)
    fail(f"{source} does not exist here. Give a folder, an archive, hf://ORG/REPOSITORY@COMMIT or s3://...", USAGE)


def _check_address(source: str) -> None:
    """End the command for a Hub repository without a commit, which the server would refuse."""
    match = _HUB.fullmatch(source)
    if match and not _COMMIT.fullmatch(match[2] or ""):
        repository = match[1]
        fail(f"{source} names no commit. Write hf://{repository}@COMMIT. {_commit(repository)}", USAGE)


def _commit(repository: str) -> str:
    return f"`git ls-remote https://huggingface.co/{repository} HEAD` prints the newest COMMIT, 40 hex digits."


def _import_there(
    source: str,
    adapter: str,
    options: dict[str, Any],
    *,
    tenant: Optional[str],
    url: Optional[str],
    key: Optional[str],
    as_json: bool,
) -> None:
    """Import from a remote source, which the server fetches."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        version = api.call("POST", adapters_path(tenant, adapter, "imports"), {"source": source, "options": options})
    if as_json:
        emit_json(version)
    else:
        show_published(version)
