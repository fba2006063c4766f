"""``tenora adapters``: publish, look at and delete LoRA adapters."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from app.cli.arguments import AdapterOption, TenantOption, VersionArgument, Yes
from app.cli.client import Api, path_of
from app.cli.connection import Json, Key, Url, connect_as_admin
from app.cli.output import USAGE, emit_json, emit_record, emit_table, fail, note, stderr

app = typer.Typer(
    no_args_is_help=True,
    help="LoRA adapters. With --tenant the key is a platform key, without it the tenant's own.",
)

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_ADAPTER_COLUMNS = {"adapter": "name", "versions": "versions", "aliases": "aliases", "created": "created_at"}
_VERSION_COLUMNS = {
    "version": "name",
    "state": "state",
    "rank": "rank",
    "bytes": "size_bytes",
    "aliases": "aliases",
    "created": "created_at",
    "digest": "digest",
}


@app.command()
def push(
    directory: Annotated[
        Path,
        typer.Argument(exists=True, file_okay=False, help=f"what PEFT saved: {CONFIG_FILE} and {WEIGHTS_FILE}"),
    ],
    adapter: AdapterOption,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Upload a folder as the adapter's next version."""
    with connect_as_admin(url, key, as_json=as_json) as api, _opened(directory) as files:
        version = api.upload(f"{_path(tenant)}{path_of(adapter, 'versions')}", files)
    _show_version(version, as_json=as_json)


@app.command("list")
def list_(tenant: TenantOption = None, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """List a tenant's adapters."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        rows = api.list(_path(tenant))
    if as_json:
        emit_json(rows)
    else:
        emit_table(_ADAPTER_COLUMNS, rows, empty="no adapters")


@app.command()
def show(
    adapter: VersionArgument, tenant: TenantOption = None, url: Url = None, key: Key = None, as_json: Json = False
) -> None:
    """Show an adapter with its versions, or one version."""
    name, _, number = adapter.partition("@")
    with connect_as_admin(url, key, as_json=as_json) as api:
        if number:
            _show_version(api.call("GET", f"{_path(tenant)}{path_of(name, 'versions', number)}"), as_json=as_json)
        else:
            _show_adapter(api, f"{_path(tenant)}{path_of(name)}", as_json=as_json)


@app.command()
def delete(
    adapter: VersionArgument,
    tenant: TenantOption = None,
    yes: Yes = False,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Delete an adapter with all its versions, or one version."""
    name, _, number = adapter.partition("@")
    what = f"version {adapter}" if number else f"adapter {name} with all its versions"
    if not yes:
        typer.confirm(f"Delete {what}?", abort=True, err=True)
    with connect_as_admin(url, key, as_json=as_json) as api:
        api.call("DELETE", f"{_path(tenant)}{path_of(name, 'versions', number) if number else path_of(name)}")
    note(f"deleted {what}")


def _path(tenant: str | None) -> str:
    return path_of("v1", "adapters") if tenant is None else path_of("admin", "tenants", tenant, "adapters")


@contextmanager
def _opened(directory: Path) -> Iterator[dict[str, BinaryIO]]:
    columns = "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=stderr(), transient=True) as progress:
        try:
            with (
                (directory / CONFIG_FILE).open("rb") as config,
                progress.open(directory / WEIGHTS_FILE, "rb", description="uploading") as weights,
            ):
                yield {CONFIG_FILE: config, WEIGHTS_FILE: weights}
        except OSError as error:
            fail(f"{error.filename}: {error.strerror}", USAGE)


def _show_adapter(api: Api, path: str, *, as_json: bool) -> None:
    adapter = api.call("GET", path)
    versions = api.list(f"{path}/versions")
    if as_json:
        emit_json(adapter | {"versions": versions})
        return
    emit_record(adapter, ("name", "tenant", "aliases", "created_at"))
    emit_table(_VERSION_COLUMNS, versions, empty="no versions")


def _show_version(version: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(version)
    else:
        emit_record(version, tuple(_VERSION_COLUMNS.values()))
