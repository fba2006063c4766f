"""``tenora store``: whose bytes the store holds. No server is needed."""

from typing import Annotated

import typer

from app.cli.configuration import load_settings
from app.cli.connection import Json
from app.cli.output import emit_json, note
from app.cli.setup import failures_told

app = typer.Typer(no_args_is_help=True, help="Whose bytes the store holds.")


@app.callback()
def _group() -> None:
    """A group of commands, although it has only one."""


@app.command()
def adopt(
    yes: Annotated[bool, typer.Option("--yes", help="also if it belongs to another registry")] = False,
    as_json: Json = False,
) -> None:
    """Make the store this registry's own, as after a restored database.

    Stop all servers on it first: those of another registry are not ready any more, and remove nothing.
    """
    from app.cli.registry import adopt_store, check_schema

    settings = load_settings()
    with failures_told():
        check_schema(settings)
        before, now = adopt_store(settings, force=yes)
    if as_json:
        emit_json({"before": before, "registry": now})
    else:
        note(f"the store belongs to registry {now}" + (", as before" if before == now else ""))
