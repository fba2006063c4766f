"""Entry points of other packages: commands and checks that they add. They are imported only when they are needed.

- ``tenora.commands`` names a sequence of :class:`Command`. The server's package adds ``tenora server`` and its others.
- ``tenora.validators`` names a function of an adapter's folder, a base's folder and the largest rank that returns the
  reasons of a refusal, as the server's answer has them.
- ``tenora.prechecks`` names a function of an adapter's config and weights that returns reasons of a refusal.
- ``tenora.batches`` names a function of a tenant that returns this machine's engine as a
  :class:`tenora_client.batches.service.Backend`.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Optional, Protocol

import typer
from typer.core import TyperCommand, TyperGroup

from tenora_client.batches.service import Backend
from tenora_client.cli.common_options import add_common_options
from tenora_client.cli.invocation import begin
from tenora_client.cli.output import FAILED, INTERRUPTED, USAGE, fail, note, report

#: Commands that the server's package adds, with their earlier names. Without it they answer with a sentence.
OF_THE_SERVER = frozenset(
    {"server", "engines", "verify", "serve", "init", "migrate", "gc", "plan", "bench", "store", "audit"},
)


@dataclass(frozen=True)
class Command:
    """Command of another package, described without an import of its code.

    Attributes:
        help: text for the list of commands: the first sentence of the command's own help.
        target: ``module:attribute`` of a Typer app, or of a command's function; empty for a group of ``commands``.
        commands: commands of a group.
        hidden: whether the list of commands leaves it out.
    """

    name: str
    help: str
    target: str = ""
    commands: "tuple[Command, ...]" = ()
    hidden: bool = False


class Reason(Protocol):
    """Reason why no server would accept an upload."""

    @property
    def message(self) -> str:
        """Sentence for people."""

    def shown(self) -> dict[str, Any]:
        """Return the reason as the server's answer has it."""


#: Set by the completion script of a shell, which calls the command for its proposals.
COMPLETION_VARIABLE = "_TENORA_COMPLETE"

#: Typer has its own copy of click, or uses the installed one. This finds the classes of either.
_UsageError: Any = typer.BadParameter.__bases__[0]
_ClickException: Any = _UsageError.__bases__[0]

#: Errors of a write to a full disk, a used-up quota or a file of the largest size.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PluginGroup(TyperGroup):
    """Group of commands with those of other packages. Their entry points are read when a name is not its own."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        add_common_options(self)

    def main(
        self,
        args: Optional[Sequence[str]] = None,
        prog_name: Optional[str] = None,
        complete_var: Optional[str] = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command. Wrong usage is one sentence on stderr, as every other error is."""
        if COMPLETION_VARIABLE in os.environ:
            from typer.completion import get_completion_inspect_parameters

            get_completion_inspect_parameters()  # registers the shells
        with begin():
            if not standalone_mode:
                return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
            try:
                code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
                if sys.stdout is not None:
                    sys.stdout.flush()  # fails here, if at all, and not after the exit code is chosen
            except OSError as error:
                if error.errno not in (errno.EPIPE, *_NO_SPACE):
                    raise
                sys.exit(_report_output(error))
            except _ClickException as error:
                sys.exit(_report(error))
            except typer.Abort:
                note("Interrupted.")
                sys.exit(INTERRUPTED)
            sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: Any) -> list[str]:
        self._discover()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            self._discover()
        return super().get_command(ctx, cmd_name)

    def _discover(self) -> None:
        for command in _commands():
            self.commands.setdefault(command.name, _built(command))
        for name in OF_THE_SERVER:
            self.commands.setdefault(name, _absent(name))


class _Deferred(TyperCommand):
    """Command that is imported when it runs, or when its help or options are asked for."""

    def __init__(self, command: Command) -> None:
        super().__init__(name=command.name, help=command.help, hidden=command.hidden)
        self._target = command.target

    def load(self) -> Any:
        """Import the command.

        Raises:
            ImportError, AttributeError: the package names a command that it does not have.
        """
        module, _, attribute = self._target.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            app = typer.Typer(add_completion=False)
            app.command()(found)
            found = app
        command: Any = typer.main.get_command(found)
        command.name, command.hidden = self.name, self.hidden
        add_common_options(command)
        return command

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent, **extra)


def subcommands(group: Any) -> dict[str, Any]:
    """Return all commands of a group by name, those of other packages imported; empty for a single command."""
    if not hasattr(group, "list_commands"):
        return {}
    context = typer.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command.load() if isinstance(command, _Deferred) else command for name, command in commands.items()}


def offline_checks() -> Sequence[Callable[[Path, Path, int], Sequence[dict[str, Any]]]]:
    """Return the validators of other packages: functions of an adapter's folder, a base's folder and a rank."""
    return [entry.load() for entry in _entries("tenora.validators")]


def precheck(config: Path, weights: Path) -> Sequence[Reason]:
    """Return the reasons why no server would accept these files; none if no package here can tell.

    Raises:
        OSError: a file cannot be read.
    """
    reasons: list[Reason] = []
    for entry in _entries("tenora.prechecks"):
        check: Callable[[Path, Path], Sequence[Reason]] = entry.load()
        reasons += check(config, weights)
    return reasons


def offline_backend(tenant: Optional[str]) -> Backend:
    """Return the engine of this machine. End the command if no package here has one.

    Args:
        tenant: owner of the batch; None: the only tenant.
    """
    entries = _entries("tenora.batches")
    if not entries:
        fail(
            "--offline needs the server's environment, which is not installed here. Run `make environment` in a "
            "checkout of Tenora, then `.venv/bin/tenora batch run --offline`.",
            USAGE,
        )
    backend: Callable[[Optional[str]], Backend] = entries[0].load()
    return backend(tenant)


def _report(error: Any) -> int:
    """Print wrong usage, and return the exit code."""
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        # The help is the answer to a command without arguments.
        sys.stdout.write(error.format_message())
        return USAGE
    message = error.format_message().strip()
    message = message if message.endswith((".", "?")) else f"{message}."
    step = f" `{context.command_path} --help` shows the usage." if context else ""
    report(f"{message}{step}")
    return int(error.exit_code)


def _report_output(error: OSError) -> int:
    """Print that stdout, such as the file of a redirection, takes no more. Return the exit code."""
    # The end of the process flushes stdout once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno != errno.EPIPE:  # else the reader has ended, as `head` does
        report(f"Cannot write the output: {error.strerror}. Free space, then run the command again.")
    return FAILED


def _built(command: Command) -> Any:
    if command.target:
        return _Deferred(command)
    commands: dict[str, Any] = {inner.name: _built(inner) for inner in command.commands}
    return TyperGroup(
        name=command.name, help=command.help, hidden=command.hidden, commands=commands, no_args_is_help=True
    )


def _absent(name: str) -> Any:
    """Build a hidden command that says how to get the real one."""

    def explain() -> None:
        fail(
            f"`tenora {name}` needs the server's environment, which is not installed here. Run `make environment` in a "
            f"checkout of Tenora, then `.venv/bin/tenora {name}`. See docs/quickstart.md there.",
            USAGE,
        )

    app = typer.Typer(add_completion=False)
    app.command(
        name,
        hidden=True,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(explain)
    return typer.main.get_command(app)


def _commands() -> Iterator[Command]:
    for entry in _entries("tenora.commands"):
        yield from _loaded(entry)


def _loaded(entry: EntryPoint) -> Sequence[Command]:
    try:
        commands: Sequence[Command] = entry.load()
    except ImportError as error:
        note(f"The commands of {entry.value} cannot be loaded: {error}. Install that package again.")
        return ()
    return commands


def _entries(group: str) -> Sequence[EntryPoint]:
    if sys.version_info >= (3, 10):
        return tuple(entry_points(group=group))
    return tuple(entry_points().get(group, ()))
