"""Root of the command, with its contract for scripts: exit codes and output streams."""

import typer

from app.cli import adapters, audit, bench, engine, keys, prices, store, tenants
from app.cli.gc import gc
from app.cli.generate import generate
from app.cli.limits import limits
from app.cli.plan import plan
from app.cli.serve import serve
from app.cli.setup import init, migrate
from app.cli.usage import usage
from app.cli.verify import verify

app = typer.Typer(
    name="tenora",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serve many tenants' LoRA adapters on one base Llama.",
    epilog=(
        "Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 the server cannot be reached; 130 interrupted. "
        "Results go to stdout, messages to stderr. The server reads its settings from TENORA_* variables."
    ),
)
for command in (init, serve, migrate, gc, generate, plan, limits, usage, verify):
    app.command()(command)
app.add_typer(tenants.app, name="tenants")
app.add_typer(keys.app, name="keys")
app.add_typer(adapters.app, name="adapters")
app.add_typer(prices.app, name="prices")
app.add_typer(engine.app, name="engine")
app.add_typer(audit.app, name="audit")
app.add_typer(store.app, name="store")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Entry point of the ``tenora`` command."""
    app()
