"""The command line against the real engine."""

import json
import subprocess
import sys

import pytest

QUESTION = "Can you explain sugar?"


@pytest.fixture
def tenora(server, tmp_path):
    """Run the command as a process: its exit code, stdout and stderr."""

    def run(*arguments, key, exit_code=0):
        variables = {"TENORA_URL": server.url, "TENORA_KEY": key, "TENORA_HOME": str(tmp_path), "PATH": "/usr/bin"}
        done = subprocess.run(
            [sys.executable, "-m", "tenora_client", *arguments],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == exit_code, done.stderr
        return done

    return run


@pytest.mark.parametrize("chat", [(), ("--chat",)])
def test_generate_streams_what_it_returns_whole(tenora, keys, chat):
    ask = ("generate", QUESTION, "--model", "pricing", "--temperature", "0", "--max-tokens", "48", *chat)
    streamed = tenora(*ask, key=keys["pricing"])
    assert streamed.stderr == ""
    assert streamed.stdout.strip()
    assert tenora(*ask, "--no-stream", key=keys["pricing"]).stdout == streamed.stdout
    answer = json.loads(tenora(*ask, "--json", key=keys["pricing"]).stdout)
    text = answer["choices"][0]["message"]["content"] if chat else answer["choices"][0]["text"]
    assert text + "\n" == streamed.stdout


def test_the_adapter_changes_the_answer(tenora, keys):
    ask = ("generate", QUESTION, "--chat", "--temperature", "0")
    base = tenora(*ask, key=keys["pricing"]).stdout
    pricing = tenora(*ask, "--model", "pricing@1", key=keys["pricing"]).stdout
    supply = tenora(*ask, "--model", "supply-chain", key=keys["supply-chain"]).stdout
    assert len({base, pricing, supply}) == 3


def test_someone_elses_adapter_is_refused(tenora, keys):
    refused = tenora("generate", QUESTION, "--model", "supply-chain", key=keys["pricing"], exit_code=1)
    assert refused.stdout == ""
    assert "404" in refused.stderr


def test_push_then_generate(tenora, server, keys, trained_demo):
    folder = str(trained_demo.adapters["pricing"])
    pushed = tenora("adapters", "push", folder, "--adapter", "from-cli", "--json", key=keys["pricing"])
    assert json.loads(pushed.stdout)["name"] == "from-cli@1"
    ask = ("generate", QUESTION, "--temperature", "0", "--model")
    own = tenora(*ask, "from-cli", key=keys["pricing"]).stdout
    assert own == tenora(*ask, "pricing", key=keys["pricing"]).stdout
