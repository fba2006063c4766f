"""Root of the command, with its contract for scripts: exit codes and output streams."""

from typing import Annotated

import typer

from tenora_client import __version__
from tenora_client.cli import adapters, batch, engine, files, keys, models, prices, tenants
from tenora_client.cli.chat import chat
from tenora_client.cli.completion import completion
from tenora_client.cli.generate import generate
from tenora_client.cli.limits import limits
from tenora_client.cli.login import login, logout, profiles, use, whoami
from tenora_client.cli.output import emit_line
from tenora_client.cli.plugins import PluginGroup
from tenora_client.cli.status import status, version
from tenora_client.cli.usage import usage

app = typer.Typer(
    name="tenora",
    cls=PluginGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 the server cannot be reached; 130 interrupted. "
        "Results go to stdout, messages to stderr."
    ),
)
for command in (login, logout, whoami, status, version, profiles, use, completion, generate, chat, limits, usage):
    app.command()(command)
app.add_typer(adapters.app, name="adapters")
app.add_typer(models.app, name="models")
app.add_typer(batch.app, name="batch")
app.add_typer(files.app, name="files")
app.add_typer(tenants.app, name="tenants")
app.add_typer(keys.app, name="keys")
app.add_typer(prices.app, name="prices")
app.add_typer(engine.app, name="engine")


def _print_version(wanted: bool) -> None:
    if wanted:
        emit_line(f"tenora-client {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit")
    ] = False,
) -> None:
    """Serve many tenants' LoRA adapters on one base Llama."""


def main() -> None:
    """Entry point of the ``tenora`` command."""
    app()
