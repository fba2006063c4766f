"""Commands of the server's package: listed without an import of its code, with their earlier names, or absent."""

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from inspect import unwrap
from typing import Any

import pytest
import typer

from app.cli.commands import COMMANDS
from tenora_client.cli import plugins
from tenora_client.cli.plugins import OF_THE_SERVER, Command, subcommands
from tenora_client.cli.root import app
from tests.support.cli import Tenora

HEAVY = ["torch", "vllm", "transformers", "numpy", "sqlalchemy", "fastapi", "boto3", "pydantic_settings", "adapters"]


@pytest.fixture
def group() -> Any:
    return typer.main.get_command(app)


def listed(commands: tuple[Command, ...], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Command]]:
    found = []
    for command in commands:
        found.append(((*path, command.name), command))
        found += listed(command.commands, (*path, command.name))
    return found


@pytest.mark.parametrize(("path", "command"), listed(COMMANDS), ids=str)
def test_the_list_says_what_a_commands_own_help_says(group: Any, path: tuple[str, ...], command: Command) -> None:
    for name in path:
        group = subcommands(group)[name]
    assert group.help.startswith(command.help)
    assert group.help[len(command.help) :][:1] in ("", " ", "\n")


def test_an_earlier_name_is_a_hidden_alias(group: Any) -> None:
    commands = subcommands(group)
    server = subcommands(commands["server"])
    assert not commands["server"].hidden
    assert not commands["verify"].hidden
    assert not commands["engines"].hidden
    for name in OF_THE_SERVER - {"server", "engines", "verify"}:
        assert commands[name].hidden
        assert not server[name].hidden
        assert unwrap(commands[name].callback) is unwrap(server[name].callback)
        assert subcommands(commands[name]).keys() == subcommands(server[name]).keys()


@pytest.mark.parametrize("arguments", [["--help"], ["server", "--help"], ["adapters", "--help"], ["--version"]])
def test_the_list_of_commands_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from tenora_client.cli.root import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    modules = set(done.stderr.split())
    assert not modules & set(HEAVY)
    own = {name for name in modules if name.split(".")[0] == "app"}
    assert own <= {"app", "app.cli", "app.cli.commands"}


@pytest.mark.parametrize("arguments", [["adapters", "--help"], ["--version"]])
def test_a_command_of_the_client_reads_no_entry_points(
    alone: Tenora, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda **_: pytest.fail("entry points were read"))
    alone(*arguments)


@pytest.mark.parametrize("arguments", [["serve", "--demo"], ["server", "gc", "--help"], ["init"], ["verify", "a@1"]])
def test_without_the_server_its_commands_say_what_they_need(
    alone: Tenora, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda **_: ())
    result = alone(*arguments, exit_code=2)
    assert f"`tenora {arguments[0]}` needs the server's environment" in result.stderr
    assert "docs/quickstart.md" in result.stderr
    assert not re.search(r"\W (server|verify|serve) ", alone("--help").stdout)


def test_a_broken_package_is_named_and_harms_no_other_command(alone: Tenora, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("other", "no_such_package.commands:COMMANDS", "tenora.commands")
    monkeypatch.setattr(plugins, "entry_points", lambda **_: (broken,))
    result = alone("--help")
    assert "no_such_package.commands:COMMANDS cannot be loaded" in result.stderr
    assert "adapters" in result.stdout
