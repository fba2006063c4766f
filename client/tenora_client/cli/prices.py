"""``tenora prices``: prices of tokens."""

from typing import Annotated, Optional

import typer

from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.output import emit_json, emit_table, note
from tenora_client.transport import path_of

app = typer.Typer(no_args_is_help=True, help="Prices of a million tokens. Needs a platform key.")

_COLUMNS = {"model": "model", "prompt": "prompt", "cached": "cached", "output": "output", "batch": "batch"}

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Model: default, base or TENANT/ADAPTER")]


@app.command("list")
def list_(url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """List the prices."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        prices = api.call("GET", path_of("admin", "prices"))
    if as_json:
        emit_json(prices)
    else:
        note(f"Prices are in {prices['currency']} per million tokens.")
        emit_table(_COLUMNS, prices["data"], empty="There are no prices. All tokens are free.")


@app.command("set")
def set_(
    model: Model,
    prompt: Annotated[str, typer.Option(help="Price of prompt tokens, such as 0.15")],
    output: Annotated[str, typer.Option(help="Price of answer tokens, such as 0.60")],
    cached: Annotated[
        Optional[str], typer.Option(help="Price of prompt tokens from the engine's cache (default: as --prompt)")
    ] = None,
    batch: Annotated[
        Optional[str], typer.Option(help="Factor of the prices for lines of batches, such as 0.5 (default: 1)")
    ] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Set the price of a million tokens of a model, effective from the next request."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        body = {"prompt": prompt, "cached": cached, "output": output}
        # Servers before 0.3 do not know the factor.
        price = api.call("PUT", _path(model), body if batch is None else {**body, "batch": batch})
    if as_json:
        emit_json(price)
    else:
        emit_table(_COLUMNS, [price], empty="")


@app.command()
def unset(model: Model, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Remove a model's price. The model then costs what `default` does, or nothing."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        api.call("DELETE", _path(model))
    if not as_json:
        note(f"Removed the price of {model}.")


def _path(model: str) -> str:
    return path_of("admin", "prices", *model.split("/"))
