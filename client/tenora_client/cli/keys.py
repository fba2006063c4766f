"""``tenora keys``: manage the keys of a tenant or of the platform team."""

from contextlib import AbstractContextManager
from typing import Annotated, Any, Optional

import typer

from tenora_client.cli.arguments import TenantOption, checked_key_id, keys_path, own_keys_path, seconds
from tenora_client.cli.closed_values import checked_value
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin, connect_as_tenant
from tenora_client.cli.limits import key_limits
from tenora_client.cli.output import emit_json, emit_line, emit_table, note
from tenora_client.transport import Api, path_of

app = typer.Typer(
    no_args_is_help=True, help="The keys of a tenant, or of the platform team. Needs a platform key, or --own."
)
app.command("limits")(key_limits)

_COLUMNS = {
    "id": "id",
    "name": "name",
    "owner": "owner",
    "scopes": "scopes",
    "created": "created_at",
    "expires": "expires_at",
    "revoked": "revoked_at",
}

#: All scopes. The server decides which of them fit a tenant's key, and which a platform key.
SCOPES = ("inference", "batch", "adapters:read", "adapters:write", "usage:read", "keys:write", "admin", "metrics")


def _scope(text: str) -> str:
    return checked_value(text, SCOPES, "a scope")


Platform = Annotated[bool, typer.Option("--platform", help="Keys of the platform team, instead of --tenant")]
Own = Annotated[
    bool, typer.Option("--own", help="Keys of the calling key's tenant, instead of --tenant; needs keys:write")
]
KeyId = Annotated[str, typer.Argument(metavar="KEY-ID", help="Id of the key, as `keys list` shows it")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Purpose of the key")],
    tenant: TenantOption = None,
    platform: Platform = False,
    own: Own = False,
    scope: Annotated[
        Optional[list[str]],
        typer.Option(
            parser=_scope,
            metavar="SCOPE",
            help="Scope; repeatable. A tenant's key: inference, batch, adapters:read, adapters:write, usage:read "
            "or keys:write (default: inference). A platform key: admin or metrics (default: admin).",
        ),
    ] = None,
    expires_in: Annotated[
        Optional[int], typer.Option(metavar="DURATION", parser=seconds, help="Lifetime, such as 90d (default: no end)")
    ] = None,
    adapter: Annotated[
        Optional[list[str]],
        typer.Option(help="Adapter that the key may infer with; repeatable (default: all of the tenant's)"),
    ] = None,
    address: Annotated[
        Optional[list[str]],
        typer.Option(help="Network that the key works from, such as 10.0.0.0/8; repeatable (default: all)"),
    ] = None,
    owner: Annotated[
        Optional[str], typer.Option(help="Person or application that uses the key: a label, for reports")
    ] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Create a key and print it once. It cannot be shown again."""
    path = own_keys_path(tenant, platform=platform, own=own)
    body: dict[str, Any] = {"name": name}
    body |= {"scopes": scope} if scope else {}
    body |= {"expires_in_s": expires_in} if expires_in is not None else {}
    body |= {"adapters": adapter} if adapter else {}
    body |= {"addresses": address} if address else {}
    body |= {"owner": owner} if owner is not None else {}
    with _connect(url, key, own=own, as_json=as_json) as api:
        _show_once(api.call("POST", path, body), as_json=as_json)


@app.command("list")
def list_(
    tenant: TenantOption = None,
    platform: Platform = False,
    own: Own = False,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List keys. Their secrets are not stored."""
    path = own_keys_path(tenant, platform=platform, own=own)
    with _connect(url, key, own=own, as_json=as_json) as api:
        rows = api.list(path)
    if as_json:
        emit_json(rows)
    else:
        emit_table(_COLUMNS, rows, empty="There are no keys.")


@app.command()
def revoke(
    key_id: KeyId,
    tenant: TenantOption = None,
    platform: Platform = False,
    own: Own = False,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Revoke a key. It stops working within a second."""
    path = f"{own_keys_path(tenant, platform=platform, own=own)}{path_of(checked_key_id(key_id))}"
    with _connect(url, key, own=own, as_json=as_json) as api:
        api.call("DELETE", path)
    note(f"Revoked key {key_id}.")


@app.command()
def rotate(
    key_id: KeyId,
    tenant: TenantOption = None,
    platform: Platform = False,
    grace: Annotated[
        Optional[int],
        typer.Option(metavar="DURATION", parser=seconds, help="Time for which the old key still works (default: 1h)"),
    ] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Rotate a key: print a new one once and let the old one expire after a grace period."""
    path = f"{keys_path(tenant, platform=platform)}{path_of(checked_key_id(key_id), 'rotate')}"
    with connect_as_admin(url, key, as_json=as_json) as api:
        _show_once(api.call("POST", path, {} if grace is None else {"grace_s": grace}), as_json=as_json)
        if not as_json:
            old = next((row for row in api.list(keys_path(tenant, platform=platform)) if row["id"] == key_id), {})
            note(f"The old key {key_id} {_expiry(old)}.")


def _connect(url: Optional[str], key: Optional[str], *, own: bool, as_json: bool) -> AbstractContextManager[Api]:
    if own:
        return connect_as_tenant(url, key, tenant=None, model=None, as_json=as_json)
    return connect_as_admin(url, key, as_json=as_json)


def _show_once(created: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(created)
        return
    note(f"Key {created.get('id')} {_expiry(created)}. Store it now, because it is not shown again:")
    emit_line(str(created.get("key")))


def _expiry(key: dict[str, Any]) -> str:
    at = key.get("expires_at")
    return f"expires at {at[:19].replace('T', ' ')} UTC" if at else "never expires"
