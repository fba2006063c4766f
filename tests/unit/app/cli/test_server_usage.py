"""Wrong use of the server's commands is named before any work."""

import socket

import pytest


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


def test_bench_hands_options_to_the_benchmark(alone):
    # The output belongs to a child process, so the runner sees only the exit code.
    alone("bench", "registry", "--help")
    alone("bench", "registry", "--nonsense", exit_code=2)
