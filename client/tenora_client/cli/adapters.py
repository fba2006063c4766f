"""``tenora adapters``: publish, inspect and delete LoRA adapters."""

from typing import Annotated, Any, Optional

import typer

from tenora_client.cli import aliases, limits, pins, shares
from tenora_client.cli.arguments import TenantOption, VersionArgument, adapter_name
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.descriptions import (
    BaseFilter,
    LabelFilters,
    StateFilter,
    describe,
    list_filters,
    show_version,
    with_alias_words,
)
from tenora_client.cli.export import export
from tenora_client.cli.imports import import_
from tenora_client.cli.lifecycle import delete, deletions, restore, retire
from tenora_client.cli.merges import merge
from tenora_client.cli.output import emit_json, emit_record, emit_table
from tenora_client.cli.push import push
from tenora_client.cli.validate import validate
from tenora_client.cli.watch import watch
from tenora_client.transport import Api, path_of

app = typer.Typer(
    no_args_is_help=True,
    help="Publish and manage LoRA adapters. With --tenant, give a platform key. Without it, give a tenant's key.",
)

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


@app.command("list")
def list_(
    tenant: TenantOption = None,
    label: LabelFilters = None,
    state: StateFilter = None,
    base: BaseFilter = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List a tenant's adapters, optionally those with a version that matches the filters."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        rows = api.list(_path(tenant), list_filters(label, state, base))
    if as_json:
        emit_json(rows)
    else:
        emit_table(_ADAPTER_COLUMNS, [with_alias_words(row) for row in rows], empty="There are no adapters.")


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
def versions(
    adapter: Annotated[str, typer.Argument(metavar="ADAPTER", parser=adapter_name, help="Name of the adapter")],
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List an adapter's versions, newest first."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        rows = api.list(f"{_path(tenant)}{path_of(adapter, 'versions')}")
    if as_json:
        emit_json(rows)
    else:
        emit_table(_VERSION_COLUMNS, rows, empty="The adapter has no versions.")


for command in (
    push,
    validate,
    export,
    delete,
    deletions,
    retire,
    restore,
    watch,
    describe,
    merge,
    shares.share,
    shares.unshare,
    shares.shares,
    shares.shared,
    *aliases.COMMANDS,
    *pins.COMMANDS,
):
    app.command()(command)
app.command("import")(import_)
app.command("limits")(limits.adapter_limits)


def _path(tenant: Optional[str]) -> str:
    return path_of("v1", "adapters") if tenant is None else path_of("admin", "tenants", tenant, "adapters")


def _show_adapter(api: Api, path: str, *, as_json: bool) -> None:
    adapter = api.call("GET", path)
    versions = api.list(f"{path}/versions")
    if as_json:
        emit_json(adapter | {"versions": versions})
        return
    emit_record(with_alias_words(adapter), ("name", "tenant", "aliases", "created_at"))
    emit_table(_VERSION_COLUMNS, versions, empty="The adapter has no versions.")


def _show_version(version: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(version)
    else:
        show_version(version)
