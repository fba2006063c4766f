"""``tenora prices``: prices of tokens."""

from typing import Annotated

import typer

from app.cli.connection import Json, Key, Url, connect_as_admin
from app.cli.output import emit_json, emit_table, note
from app.client.api import path_of

app = typer.Typer(no_args_is_help=True, help="What a million tokens cost. Needs a platform key.")

_COLUMNS = {"model": "model", "prompt": "prompt", "cached": "cached", "output": "output"}

Model = Annotated[str, typer.Argument(metavar="MODEL", help="default, base, or TENANT/ADAPTER")]


@app.command("list")
def list_(url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """List the prices."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        found = api.call("GET", path_of("admin", "prices"))
    if as_json:
        emit_json(found)
    else:
        note(f"{found['currency']} per million tokens")
        emit_table(_COLUMNS, found["data"], empty="no prices: everything is free")


@app.command("set")
def set_(
    model: Model,
    prompt: Annotated[str, typer.Option(help="of prompt tokens, like 0.15")],
    output: Annotated[str, typer.Option(help="of tokens of answers, like 0.60")],
    cached: Annotated[
        str | None, typer.Option(help="of prompt tokens that the engine still had (default: as --prompt)")
    ] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Set the price of a million tokens of a model, effective from the next request."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        made = api.call("PUT", _path(model), {"prompt": prompt, "cached": cached, "output": output})
    if as_json:
        emit_json(made)
    else:
        emit_table(_COLUMNS, [made], empty="")


@app.command()
def unset(model: Model, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Remove a model's price. The model then costs what `default` does, or nothing."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        api.call("DELETE", _path(model))
    if not as_json:
        note(f"{model} has no price of its own any more")


def _path(model: str) -> str:
    return path_of("admin", "prices", *model.split("/"))
