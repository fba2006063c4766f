"""Commands of ``tenora adapters`` for sharing an adapter with other tenants."""

from typing import Annotated

import typer

from tenora_client.cli.arguments import TenantOption, adapter_name, tenant_name
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.descriptions import with_alias_words
from tenora_client.cli.output import emit_json, emit_table, note
from tenora_client.transport import adapters_path, path_of

_Adapter = Annotated[str, typer.Argument(metavar="ADAPTER", parser=adapter_name, help="Name of the adapter")]
_With = Annotated[
    str, typer.Option("--with", metavar="TENANT", parser=tenant_name, help="Tenant that receives the share")
]

_SHARE_COLUMNS = {"tenant": "recipient", "exists": "recipient_exists", "since": "created_at", "by key": "created_by"}
_SHARED_COLUMNS = {"model": "name", "versions": "versions", "aliases": "aliases", "since": "shared_at"}


def share(
    adapter: _Adapter,
    recipient: _With,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Let another tenant read an adapter and infer with it."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        record = api.call("PUT", adapters_path(tenant, adapter, "shares", recipient))
    if as_json:
        emit_json(record)
    else:
        emit_table(_SHARE_COLUMNS, [record], empty="")
    if record["recipient_exists"] is None:
        note(f"Check the name {recipient!r}. A tenant's key cannot see which tenants exist.")


def unshare(
    adapter: _Adapter,
    recipient: _With,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """End a share, effective from the next request."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        api.call("DELETE", adapters_path(tenant, adapter, "shares", recipient))
    note(f"{adapter} is no longer shared with {recipient}.")


def shares(
    adapter: _Adapter, tenant: TenantOption = None, url: Url = None, key: Key = None, as_json: Json = False
) -> None:
    """List the recipients of an adapter's shares."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        rows = api.list(adapters_path(tenant, adapter, "shares"))
    if as_json:
        emit_json(rows)
    else:
        emit_table(_SHARE_COLUMNS, rows, empty="The adapter is not shared.")


def shared(tenant: TenantOption = None, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """List the adapters that other tenants share with this tenant."""
    path = path_of("v1", "shared") if tenant is None else path_of("admin", "tenants", tenant, "shared")
    with connect_as_admin(url, key, as_json=as_json) as api:
        rows = api.list(path)
    if as_json:
        emit_json(rows)
    else:
        adapters = [with_alias_words(row) for row in rows]
        emit_table(_SHARED_COLUMNS, adapters, empty="No adapters are shared with this tenant.")
