"""``tenora tenants``: manage the business units of a server."""

from typing import Annotated, Any, Optional

import typer

from tenora_client.cli.arguments import TenantArgument, Yes, confirm, number_or_none
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.limits import tenant_limits
from tenora_client.cli.output import emit_json, emit_record, emit_table, note
from tenora_client.transport import path_of

app = typer.Typer(no_args_is_help=True, help="The business units that own adapters and keys. Needs a platform key.")
app.command("limits")(tenant_limits)

_COLUMNS = {"tenant": "slug", "name": "name", "disabled": "disabled", "weight": "weight", "created": "created_at"}

_WEIGHT = "Weight of the tenant's share of the engine, 0.001 to 1000"
_LIMIT = "NUMBER|none"


def _quota_option(*names: str, help: str) -> Any:  # noqa: A002 - the name that typer uses
    return typer.Option(*names, metavar=_LIMIT, help=help)


@app.command()
def create(
    tenant: TenantArgument,
    name: Annotated[Optional[str], typer.Option(help="Display name (default: TENANT)")] = None,
    weight: Annotated[Optional[float], typer.Option(help=f"{_WEIGHT} (default: 1)")] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Create a tenant."""
    fields = {"slug": tenant, "name": name, "weight": weight}
    body = {field: value for field, value in fields.items() if value is not None}
    with connect_as_admin(url, key, as_json=as_json) as api:
        _show(api.call("POST", path_of("admin", "tenants"), body), as_json=as_json)


@app.command("list")
def list_(url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """List the tenants."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        rows = api.list(path_of("admin", "tenants"))
    if as_json:
        emit_json(rows)
    else:
        emit_table(_COLUMNS, rows, empty="There are no tenants.")


@app.command()
def show(tenant: TenantArgument, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Show one tenant."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        _show(api.call("GET", path_of("admin", "tenants", tenant)), as_json=as_json)


@app.command()
def disable(tenant: TenantArgument, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Refuse the tenant's keys until it is enabled again."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        _show(api.call("PATCH", path_of("admin", "tenants", tenant), {"disabled": True}), as_json=as_json)


@app.command()
def enable(tenant: TenantArgument, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Accept the tenant's keys again."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        _show(api.call("PATCH", path_of("admin", "tenants", tenant), {"disabled": False}), as_json=as_json)


@app.command()
def weight(
    tenant: TenantArgument,
    weight: Annotated[float, typer.Argument(help=_WEIGHT)],
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Set the tenant's share of the engine. A tenant of weight 2 gets twice the tokens of a tenant of weight 1."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        _show(api.call("PATCH", path_of("admin", "tenants", tenant), {"weight": weight}), as_json=as_json)


@app.command()
def quota(
    tenant: TenantArgument,
    adapters: Annotated[Optional[str], _quota_option(help="Maximum number of adapters")] = None,
    versions: Annotated[Optional[str], _quota_option(help="Maximum number of versions")] = None,
    size: Annotated[Optional[str], _quota_option("--bytes", help="Maximum bytes of all files of all versions")] = None,
    rank: Annotated[Optional[str], _quota_option(help="Maximum rank of an adapter")] = None,
    pinned_slots: Annotated[Optional[str], _quota_option(help="Maximum number of pinned slots")] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Set quotas of a tenant, and show all of them with their use."""
    quotas = {"adapters": adapters, "versions": versions, "bytes": size, "rank": rank, "pinned_slots": pinned_slots}
    limits = {field: number_or_none(field, text) for field, text in quotas.items() if text is not None}
    path = path_of("admin", "tenants", tenant)
    with connect_as_admin(url, key, as_json=as_json) as api:
        if limits:
            api.call("PATCH", path, {"quota": limits})
        record = api.call("GET", path)
    if as_json:
        emit_json({"quota": record["quota"], "used": record["used"]})
        return
    rows = [{"quota": field, "used": record["used"][field], "allowed": record["quota"][field]} for field in quotas]
    emit_table({"quota": "quota", "used": "used", "allowed": "allowed"}, rows, empty="")


@app.command()
def delete(tenant: TenantArgument, yes: Yes = False, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Delete a tenant without adapters, and its keys."""
    if not yes:
        confirm(f"Delete tenant {tenant}?")
    with connect_as_admin(url, key, as_json=as_json) as api:
        api.call("DELETE", path_of("admin", "tenants", tenant))
    note(f"Deleted tenant {tenant}.")


def _show(tenant: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(tenant)
    else:
        emit_record(tenant, tuple(_COLUMNS.values()))
