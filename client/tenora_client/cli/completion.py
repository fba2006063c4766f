"""``tenora completion``: print the script with which a shell completes the command's names and options."""

from typing import Annotated

import typer
from typer.completion import get_completion_inspect_parameters, shell_complete

from tenora_client.cli.closed_values import checked_value
from tenora_client.cli.plugins import COMPLETION_VARIABLE

_SHELLS = ("bash", "zsh", "fish")


def _shell(text: str) -> str:
    return checked_value(text, _SHELLS, "a supported shell")


def completion(
    context: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", parser=_shell, help="Shell to print the script for")],
) -> None:
    """Print a shell's completion script. For bash: `source <(tenora completion bash)`."""
    get_completion_inspect_parameters()  # registers the shells
    shell_complete(context.find_root().command, {}, "tenora", COMPLETION_VARIABLE, f"source_{shell}")
