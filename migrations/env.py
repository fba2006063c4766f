"""Alembic environment. Uses the given connection, or the one from the settings."""

from collections.abc import Collection
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import JSON, Column, Connection

from app.database.migrate import migration_connection, note_oldest
from app.database.tables import metadata
from app.database.urls import database_url
from app.settings import Settings


def _default_differs(
    _context: object,
    _found: object,
    column: Column[Any],
    found: str | None,
    _wanted: object,
    rendered: str | None,
) -> bool | None:
    """Compare JSON defaults as text, since PostgreSQL has no equality for JSON; None: Alembic's own comparison."""
    if not isinstance(column.type, JSON):
        return None
    return (found or "").removesuffix("::json") != (rendered or "")


def _applied(*, ctx: MigrationContext, heads: Collection[Any], **_rest: object) -> None:
    if ctx.connection is not None:
        note_oldest(ctx.connection, context.script, heads)


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        # SQLite alters a table by copying it.
        render_as_batch=connection.dialect.name == "sqlite",
        compare_server_default=_default_differs,
        on_version_apply=_applied,  # type: ignore[arg-type]  # Alembic calls it with names, and says otherwise
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    raise CommandError("Migrations run against a database; --sql is not supported.")
given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    with migration_connection(database_url(Settings())) as opened:
        _run(opened)
