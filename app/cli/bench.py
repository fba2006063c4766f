"""``tenora bench``: measurements on this machine, each in one command."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import httpx
import typer

from app.cli.client import Refused
from app.cli.connection import home
from app.cli.output import fail, note, stderr

app = typer.Typer(no_args_is_help=True, help="Measure Tenora on this machine.")

#: The modules read their own options, --help too.
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command()
def overhead(
    quick: Annotated[bool, typer.Option("--quick", help="one short round: a smoke test, not a result")] = False,
    out: Annotated[Path | None, typer.Option(help="where the JSON goes (default: below HOME/bench)")] = None,
) -> None:
    """Tenora against vLLM's own server: same weights, same engine arguments, one warm adapter, streamed."""
    # torch and vLLM come with it.
    from app.bench.client import LoadError
    from app.bench.overhead import run
    from app.bench.servers import ServerFailed

    try:
        path = run(home() / "bench", out=out, quick=quick, console=stderr())
    except (LoadError, ServerFailed, Refused, httpx.TransportError) as error:
        fail(str(error))
    note(f"written to {path}")


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def registry(context: typer.Context) -> None:
    """What resolving a key and an adapter name costs in a large registry."""
    _run("app.bench.registry", context.args)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def upload(context: typer.Context) -> None:
    """What publishing a large adapter costs in memory and time."""
    _run("app.bench.upload", context.args)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def resume(context: typer.Context) -> None:
    """What an upload sends twice that is killed again and again."""
    _run("app.bench.resume", context.args)


def _run(module: str, arguments: list[str]) -> None:
    # A process of its own: these measure memory and time of what they import.
    done = subprocess.run([sys.executable, "-m", module, *arguments], check=False)
    raise typer.Exit(done.returncode)
