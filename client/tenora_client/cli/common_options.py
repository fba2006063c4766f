"""Options that every command has which talks to a server or prints a result: ``--profile`` and ``-o``.

They are added to the commands when the tree of commands is built, so that no command has to declare them.
"""

from functools import lru_cache
from typing import Annotated, Any, Optional

import typer

from tenora_client.cli.closed_values import checked_value
from tenora_client.cli.invocation import FORMATS, current


def _set_output(value: Optional[str]) -> None:
    if value is not None:
        current().output = checked_value(value, FORMATS, "an output format")


def _set_profile(context: typer.Context, param: typer.CallbackParam, value: Optional[str]) -> Optional[str]:
    if value is not None:
        current().profile = value
        record_source(context, param)
    return value


def record_source(context: typer.Context, param: typer.CallbackParam) -> None:
    """Remember whether a parameter's value came from the environment."""
    source = context.get_parameter_source(param.name or "")
    if source is not None and source.name == "ENVIRONMENT":
        current().from_environment.add(param.name or "")


def _profile_option(*, expose_value: bool) -> Any:
    return typer.Option(
        "--profile",
        envvar="TENORA_PROFILE",
        expose_value=expose_value,
        callback=_set_profile,
        metavar="NAME",
        help="Saved profile with the server and the key (default: the current one)",
    )


#: For a command that takes a profile, but calls no server.
ProfileOption = Annotated[Optional[str], _profile_option(expose_value=True)]


def _options(
    profile: Annotated[Optional[str], _profile_option(expose_value=False)] = None,
    output: Annotated[
        Optional[str],
        typer.Option(
            "--output",
            "-o",
            is_eager=True,
            expose_value=False,
            callback=_set_output,
            metavar="|".join(FORMATS),
            help="Format of the result (default: table)",
        ),
    ] = None,
) -> None:
    """Declare the options, for Typer to build them."""


@lru_cache(maxsize=1)
def _built() -> dict[str, Any]:
    app = typer.Typer(add_completion=False)
    app.command()(_options)
    command: Any = typer.main.get_command(app)
    return {param.name: param for param in command.params}


def add_common_options(command: Any) -> None:
    """Add the options to a command, or to all commands of a group."""
    for inner in getattr(command, "commands", {}).values():
        add_common_options(inner)
    names = {param.name for param in command.params}
    for companion, name in (("url", "profile"), ("as_json", "output")):
        if companion in names and name not in names:
            command.params.append(_built()[name])
