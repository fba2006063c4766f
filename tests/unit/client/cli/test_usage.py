"""Exit codes: 2 for wrong usage, before any request, and 3 for an unreachable server."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from tenora_client.cli.plugins import subcommands
from tenora_client.cli.root import app

DEAD = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["tenants", "create", "Upper"], "Upper"),
        (["tenants", "delete", "..", "--yes"], ".."),
        (["keys", "create", "name"], "--platform"),
        (["keys", "create", "name", "--tenant", "a", "--platform"], "--platform"),
        (["keys", "list", "--own", "--platform"], "--own"),
        (["keys", "create", "name", "--platform", "--expires-in", "soon"], "soon"),
        (["keys", "revoke", "../x", "--platform"], "../x"),
        (["adapters", "push", "/does/not/exist", "--adapter", "a"], "/does/not/exist"),
        (["adapters", "push", "."], "--adapter"),
        (["adapters", "show", "a@0"], "a@0"),
        (["adapters", "show", "a@"], "a@"),
        (["generate"], "prompt"),
        (["generate", "x", "--max-tokens", "0"], "--max-tokens"),
        (["generate", "x", "--temperature", "-1"], "--temperature"),
        (["tenants", "list", "--key", "ключ"], "--key"),
        (["tenants", "list", "--key", "x", "--url", "ftp://x"], "ftp://x"),
        (["serve", "--port", "70000"], "--port"),
        (["bench", "overhead", "--rounds", "5"], "--rounds"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_names_what_is_wrong(alone, arguments, named):
    result = alone(*arguments, exit_code=2, **({} if "--key" in arguments else {"TENORA_KEY": "x", "TENORA_URL": DEAD}))
    assert result.stdout == ""
    assert named in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("keys", "create", "name", "--platform", "--expires-in", "90"),
        ("keys", "rotate", "k", "--platform", "--grace", "90"),
        ("keys", "rotate", "k", "--platform", "--grace", "0"),
        ("adapters", "canary", "prices@2", "--step", "5:90"),
        ("adapters", "delete", "prices", "--yes", "--wait", "90"),
        ("engine", "top", "--interval", "90"),
    ],
)
def test_a_duration_without_a_unit_is_refused(alone, arguments):
    result = alone(*arguments, exit_code=2, TENORA_KEY="x", TENORA_URL=DEAD)
    number = arguments[-1].rpartition(":")[2]
    words = " ".join(word for word in result.stderr.replace("│", " ").split())
    assert f"{number} has no unit" in words
    assert f"{number}s, {number}m, {number}h, {number}d" in words


def test_a_step_without_a_duration_shows_how_one_looks(alone):
    result = alone("adapters", "canary", "a@2", "--step", "5", exit_code=2, TENORA_KEY="x", TENORA_URL=DEAD)
    assert "5:10m" in result.stderr


def test_push_needs_the_two_files(alone, tmp_path):
    result = alone("adapters", "push", str(tmp_path), "--adapter", "a", exit_code=2, TENORA_KEY="x", TENORA_URL=DEAD)
    assert "adapter_config.json" in result.stderr


def test_no_key_is_wrong_usage(alone):
    assert "TENORA_KEY" in alone("tenants", "list", exit_code=2).stderr


def test_an_unreachable_server_is_3(alone):
    result = alone("tenants", "list", "--url", DEAD, "--key", "x", exit_code=3)
    assert DEAD in result.stderr
    assert result.stdout == ""


def test_help_documents_the_exit_codes(alone):
    text = alone("--help").stdout
    assert "Exit codes: 0" in text
    for command in ("tenants", "keys", "adapters", "generate", "server", "verify"):
        assert command in text
        assert "Usage" in alone(command, "--help").stdout
    text = alone("server", "--help").stdout
    for command in ("init", "serve", "migrate", "bench"):
        assert command in text
        assert "Usage" in alone("server", command, "--help").stdout


def commands(group: Any, *path: str) -> Iterator[tuple[str, ...]]:
    for name, command in subcommands(group).items():
        yield from commands(command, *path, name) if subcommands(command) else [(*path, name)]


@pytest.mark.parametrize(
    "command", [path for path in commands(typer.main.get_command(app)) if "bench" not in path], ids=" ".join
)
def test_every_command_explains_itself(alone, command):
    assert "Usage" in alone(*command, "--help").stdout


def test_the_demos_keys_go_to_the_demos_address_only(alone, tmp_path):
    (tmp_path / "home").mkdir()
    access = {"base_url": DEAD, "base_model": "base", "admin_key": "tnr_secret", "tenants": {}}
    (tmp_path / "home" / "demo.json").write_text(json.dumps(access))
    alone("tenants", "list", exit_code=3)  # with the demo's address and key
    alone("tenants", "list", "--url", DEAD + "/", exit_code=3)
    assert "There is no key for" in alone("tenants", "list", "--url", "http://127.0.0.1:10", exit_code=2).stderr


def test_a_broken_demo_file_is_named(alone, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "demo.json").write_text("[]")
    assert "demo.json" in alone("tenants", "list", exit_code=2).stderr
