"""``tenora server init`` and ``tenora server migrate``: work on HOME and the database, without a server."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from adapters.errors import AdapterError
from app.cli.configuration import load_settings
from app.domain.errors import TenoraError
from tenora_client.cli.connection import Json
from tenora_client.cli.output import emit_json, emit_line, fail, note


def init(
    force_new_key: Annotated[
        bool, typer.Option("--force-new-key", help="Issue a new key even if a valid one exists")
    ] = False,
    new_pepper: Annotated[
        bool,
        typer.Option(
            "--new-pepper",
            help="Continue with a new pepper after the old one is lost. Earlier keys and audit seals become invalid.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Set up HOME and the database, and print the first platform key once. It cannot be shown again."""
    from app.cli.registry import issue_platform_key, prepare

    settings = load_settings()
    with report_failures():
        prepare(settings, new_pepper=new_pepper)
        created = asyncio.run(issue_platform_key(settings, force=force_new_key or new_pepper))
    if created is None:
        fail("A valid platform key exists already. `tenora server init --force-new-key` issues another one.")
    if as_json:
        emit_json({"id": created.key.id, "key": created.text})
        return
    note(f"Platform key {created.key.id}. Store it now, because it is not shown again:")
    emit_line(created.text)


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing, and exit with 1 unless this release can use the schema")
    ] = False,
) -> None:
    """Upgrade the database's schema to this release."""
    from app.cli.registry import check_schema, upgrade_schema

    settings = load_settings()
    with report_failures():
        revision = check_schema(settings) if check else upgrade_schema(settings)
    note(f"The schema is at revision {revision}.")


@contextmanager
def report_failures() -> Iterator[None]:
    """End the command with the message of an expected failure of the database, store, disk or settings."""
    try:
        yield
    except TenoraError as error:
        fail(error.message)
    except (AdapterError, OSError, ValueError) as error:
        fail(str(error))
