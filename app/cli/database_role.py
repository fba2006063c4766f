"""``tenora server database-role``: rights of the database role with which engine replicas connect."""

from typing import Annotated

import typer

from app.cli.configuration import load_settings
from app.cli.setup import report_failures
from tenora_client.cli.output import emit_line, note


def database_role(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Role in PostgreSQL that replicas use, and nothing else")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Run the statements on TENORA_DATABASE_URL instead of printing them")
    ] = False,
) -> None:
    """Print or apply the rights of the database role of engine replicas.

    The role must exist. It gets exactly these rights: others that it had on the registry's tables are revoked. Repeat
    the command after each `tenora server migrate`. Replicas use the role with TENORA_RAY__DATABASE_URL.
    """
    from app.database.replica_role import grant, grant_statements
    from app.database.urls import database_url

    with report_failures():
        if not apply:
            for statement in grant_statements(name):
                emit_line(f"{statement};")
            return
        grant(database_url(load_settings()), name)
    note(f"The role {name} has the rights of an engine replica.")
