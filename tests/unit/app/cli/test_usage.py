"""Exit codes: 2 for wrong usage, before any request, and 3 for an unreachable server."""

import json
import socket
from collections.abc import Iterator

import pytest
import typer

from app.cli.root import app

DEAD = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["tenants", "create", "Upper"], "Upper"),
        (["tenants", "delete", "..", "--yes"], ".."),
        (["keys", "create", "name"], "--platform"),
        (["keys", "create", "name", "--tenant", "a", "--platform"], "--platform"),
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


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TENORA_PROT", "8000", "Did you mean TENORA_PORT"),
        ("TENORA_ENGINE__MAX_LORA", "3", "Did you mean TENORA_ENGINE__MAX_LORAS"),
        ("TENORA_PORT", "99999", "TENORA_PORT is '99999'."),
        ("TENORA_ENGINE__MAX_LORAS", "x", "TENORA_ENGINE__MAX_LORAS is 'x'."),
        ("TENORA_ENGINE", "{", "engine"),
    ],
)
@pytest.mark.parametrize("command", [["serve"], ["init"], ["migrate"]])
def test_wrong_settings_are_named_before_any_work(alone, tmp_path, command, variable, value, said):
    assert said in alone(*command, exit_code=2, **{variable: value}).stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TENORA_ACCEPTED_PEPPERS", '[["hunter2"]]'),
        ("TENORA_IMPORTS", '{"hf_token": ["hunter2"]}'),
        ("TENORA_IMPORTS", '{"hf_tokn": "hunter2"}'),
        ("TENORA_IMPORTS", '"hunter2"'),
    ],
)
def test_a_wrong_secret_is_not_repeated(alone, variable, value):
    result = alone("init", exit_code=2, **{variable: value})
    assert variable in result.stderr
    assert "hunter2" not in result.stderr


def test_a_secret_setting_is_not_repeated(alone):
    result = alone("init", exit_code=1, TENORA_PEPPER="hunter2")
    assert "TENORA_PEPPER" in result.stderr
    assert "hunter2" not in result.stderr


def test_serve_says_that_the_port_is_taken_before_any_work(alone, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flags in ((), ("--demo",)):
            result = alone("serve", "--port", str(port), *flags, exit_code=1)
            assert f"port {port}: Address already in use" in result.stderr
    assert not (tmp_path / "home").exists()


def test_serve_needs_a_registry_at_head_and_a_base(alone):
    assert "registry" in alone("serve", "--port", "0", exit_code=1).stderr
    alone("init")
    assert "TENORA_BASE_MODEL" in alone("serve", "--port", "0", exit_code=1).stderr


def test_the_demo_serves_its_own_base(alone, tmp_path):
    result = alone("serve", "--port", "0", "--demo", exit_code=2, TENORA_BASE_MODEL=str(tmp_path))
    assert "TENORA_BASE_MODEL" in result.stderr


def test_help_documents_the_exit_codes(alone):
    text = alone("--help").stdout
    assert "Exit codes: 0" in text
    for command in ("init", "serve", "migrate", "tenants", "keys", "adapters", "generate", "bench"):
        assert command in text
        assert "Usage" in alone(command, "--help").stdout


def commands(of: typer.Typer, *path: str) -> Iterator[tuple[str, ...]]:
    for command in of.registered_commands:
        yield (*path, command.name or str(getattr(command.callback, "__name__", "")).replace("_", "-"))
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, *path, str(group.name))


@pytest.mark.parametrize("command", [path for path in commands(app) if path[0] != "bench"], ids=" ".join)
def test_every_command_explains_itself(alone, command):
    assert "Usage" in alone(*command, "--help").stdout


def test_bench_hands_options_to_the_benchmark(alone):
    # The output belongs to a child process, so the runner sees only the exit code.
    alone("bench", "registry", "--help")
    alone("bench", "registry", "--nonsense", exit_code=2)


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
