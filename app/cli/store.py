"""``tenora server store``: ownership of the store. Needs no server."""

from typing import Annotated

import typer

from app.cli.configuration import load_settings
from app.cli.setup import report_failures
from tenora_client.cli.connection import Json
from tenora_client.cli.output import emit_json, note

app = typer.Typer(no_args_is_help=True, help="Ownership of the store.")


@app.callback()
def _group() -> None:
    """Keep ``adopt`` a subcommand: Typer would otherwise merge a single command into the group."""


@app.command()
def adopt(
    yes: Annotated[bool, typer.Option("--yes", help="Adopt it even if it belongs to another registry")] = False,
    as_json: Json = False,
) -> None:
    """Assign the store to this registry, for example after a database restore.

    Stop all servers on the store first. Servers of another registry stop being ready and remove nothing.
    """
    from app.cli.registry import adopt_store, check_schema

    settings = load_settings()
    with report_failures():
        check_schema(settings)
        before, now = adopt_store(settings, force=yes)
    if as_json:
        emit_json({"before": before, "registry": now})
    else:
        note(f"The store {'already belonged' if before == now else 'now belongs'} to registry {now}.")
