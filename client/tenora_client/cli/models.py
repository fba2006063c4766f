"""``tenora models``: the names that requests may put into ``model``."""

import typer

from tenora_client.cli.connection import Json, Key, Url, connect_as_tenant
from tenora_client.cli.generate import DemoTenant
from tenora_client.cli.output import emit_json, emit_table
from tenora_client.transport import path_of

app = typer.Typer(no_args_is_help=True, help="The models that a tenant's key may infer with.")

_COLUMNS = {"model": "id", "owner": "owned_by", "base": "parent"}


@app.command("list")
def list_(tenant: DemoTenant = None, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """List the base, the tenant's adapters and those shared with it. Needs a tenant's key with the scope inference."""
    with connect_as_tenant(url, key, tenant=tenant, model=None, as_json=as_json) as api:
        rows = api.call("GET", path_of("v1", "models"))["data"]
    if as_json:
        emit_json(rows)
    else:
        emit_table(_COLUMNS, rows, empty="There are no models.")
