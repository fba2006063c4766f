"""Mistakes of new users: one error on stderr that names the next step, and its exit code."""

import socket
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cli import Tenora
from tests.support.mistaken_adapters import make_mistaken_folders

FULL_COMMIT = "0123456789" * 4
DEAD = "http://127.0.0.1:9"

#: Kind of the key that the command has.
TENANT, PLATFORM, NO_KEY = "tenant", "platform", "none"


@dataclass(frozen=True)
class Mistake:
    """Command with the exit code and the words that lead on."""

    command: list[str]
    exit_code: int
    step: str
    by: str = TENANT


MISTAKES = [
    Mistake(["adapters", "list", "--key", "tnr_wrong"], 1, "Check --key, or run `tenora login`"),
    Mistake(["adapters", "list", "--key", "sk-whatever"], 1, "begin with tnr_. Copy the key again"),
    Mistake(["adapters", "list", "--url", DEAD, "--key", "x"], 3, "another address with --url"),
    Mistake(["adapters", "list", "--url", "127.0.0.1:8000"], 2, "Write http://127.0.0.1:8000."),
    Mistake(["adapters", "list", "--url", "http://nosuchhost.invalid"], 3, "another address with --url"),
    Mistake(["adapters", "list", "--tenant", "nosuch"], 1, "`tenora tenants list` shows", PLATFORM),
    Mistake(["adapters", "list", "--tenant", "ux_retail"], 1, "Did you mean 'ux-retail'?", PLATFORM),
    Mistake(["adapters", "show", "prcing", "--tenant", "ux-retail"], 1, "Did you mean 'pricing'?", PLATFORM),
    Mistake(["generate", "hi", "--model", "prcing"], 1, "Did you mean 'pricing'?"),
    Mistake(["generate", "hi", "--model", "pricing@99"], 1, "The newest is pricing@1."),
    Mistake(["generate", "hi", "--model", "pricing:nope"], 1, "Its aliases are pricing:default"),
    Mistake(["generate", "hi", "--model", "pricing", "--max-tokens", "100000"], 1, "has 64 tokens"),
    Mistake(["adapters", "show", "quotes@77"], 1, "The newest is quotes@1."),
    Mistake(["adapters", "push", "/nonexistent", "--adapter", "x"], 2, "Give the folder that holds"),
    Mistake(["adapters", "push", "./empty", "--adapter", "x"], 2, "Give the folder that holds"),
    Mistake(["adapters", "push", "./confonly", "--adapter", "x"], 2, "Save the adapter again"),
    Mistake(["adapters", "push", "./badrank", "--adapter", "ux-bad"], 1, "Nothing was sent"),
    Mistake(["adapters", "push", "./badjson", "--adapter", "ux-bad"], 1, "Nothing was sent"),
    Mistake(["adapters", "push", "./pickle", "--adapter", "ux-bad"], 2, "Push again with --convert"),
    Mistake(["adapters", "push", "./dora", "--adapter", "ux-bad"], 1, "Nothing was sent"),
    Mistake(["adapters", "push", "./base", "--adapter", "ux-bad"], 2, "Push the folder that PEFT's"),
    Mistake(["adapters", "push", "./confonly"], 2, "--adapter NAME"),
    Mistake(["adapters", "push", "./confonly", "--adapter", "Bad Name!"], 2, "A valid name is bad-name."),
    Mistake(["tenants", "create", "ux-foo"], 1, "Give a platform key with --key, TENORA_KEY or --profile."),
    Mistake(["tenants", "create", "UX Foo"], 2, "Use 1 to 63 characters", PLATFORM),
    Mistake(["adapters", "list", "--tenant", "pricing"], 1, "`tenora tenants list`"),
    Mistake(["adapters", "list"], 1, "Add --tenant TENANT", PLATFORM),
    Mistake(["limits"], 1, "Give a tenant's key with --key, TENORA_KEY or --profile.", PLATFORM),
    Mistake(["generate", "hi"], 1, "Give a tenant's key with --key, TENORA_KEY or --profile.", PLATFORM),
    Mistake(["adapters", "promote", "quotes@9"], 1, "The newest is quotes@1."),
    Mistake(["adapters", "promote", "quotes"], 2, "Write quotes@N."),
    Mistake(["adapters", "canary", "quotes@3", "--step", "5"], 2, "Write PERCENT:DURATION"),
    Mistake(["adapters", "canary", "quotes@1", "--step", "5:10"], 2, "10 has no unit. Write one of 10s, 10m"),
    Mistake(["adapters", "delete", "quotes"], 1, "Add --yes"),
    Mistake(
        ["keys", "create", "x", "--tenant", "ux-retail", "--scope", "adapters:wirte"],
        2,
        "Did you mean 'adapters:write'?",
        PLATFORM,
    ),
    Mistake(["keys", "create", "x"], 2, "Give one of --tenant TENANT, --platform or --own.", PLATFORM),
    Mistake(["keys", "create", "x", "--tenant", "ux-retail", "--expires-in", "90"], 2, "Write one of 90s", PLATFORM),
    Mistake(["keys", "revoke", "NOPE", "--tenant", "ux-retail"], 1, "`tenora keys list`", PLATFORM),
    Mistake(["usage", "--by", "foo"], 2, "Write one of tenant, key, adapter", PLATFORM),
    Mistake(["usage", "--from", "yesterday"], 2, "such as", PLATFORM),
    Mistake(["prices", "set", "foo/bar", "--prompt", "1", "--output", "2"], 1, "`tenora tenants list`", PLATFORM),
    Mistake(["plan", "--base", "/models/llama"], 2, "Give", NO_KEY),
    Mistake(["adapters", "import", "hf://org/repo", "--adapter", "x"], 2, "Write hf://org/repo@COMMIT."),
    Mistake(["adapters", "import", f"hf://org/repo@{FULL_COMMIT}", "--adapter", "x"], 1, "TENORA_IMPORTS__HF"),
    Mistake(
        ["adapters", "import", "https://huggingface.co/org/repo", "--adapter", "x"], 2, "Write hf://org/repo@COMMIT"
    ),
    Mistake(["adapters", "list"], 2, "Run `tenora login --url http://127.0.0.1:8000`", NO_KEY),
    Mistake(["generate", "hi"], 2, "Run `tenora login --url http://127.0.0.1:8000`", NO_KEY),
    Mistake(["limits"], 2, "Run `tenora login --url http://127.0.0.1:8000`", NO_KEY),
    Mistake(["adaptors", "list"], 2, "Did you mean 'adapters'?"),
    Mistake(["adapters", "lst"], 2, "Did you mean 'list'?"),
    Mistake(["adapters", "list", "--tenat", "x"], 2, "--tenant"),
    Mistake(["adapters", "list", "-o", "jsn"], 2, "Did you mean 'json'?"),
    Mistake(["adapters", "list", "--state", "redy"], 2, "Did you mean 'ready'?"),
    Mistake(["adapters", "list", "--json", "-o", "yaml"], 2, "Give one of them."),
]


@pytest.fixture(scope="module")
def tenant_key(site: tuple[str, str], adapter_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Key of the tenant ux-retail with the adapters quotes and pricing."""
    url, key = site
    home = str(tmp_path_factory.mktemp("none"))
    tenora = Tenora({"TENORA_URL": url, "TENORA_KEY": key, "TENORA_HOME": home, "XDG_CONFIG_HOME": home})
    tenora("tenants", "create", "ux-retail")
    scopes = [word for scope in ("inference", "adapters:read", "adapters:write") for word in ("--scope", scope)]
    for adapter in ("quotes", "pricing"):
        tenora("adapters", "push", str(adapter_folder), "--adapter", adapter, "--tenant", "ux-retail")
    return tenora.json("keys", "create", "x", "--tenant", "ux-retail", *scopes)["key"]


@pytest.fixture
def folders(adapter_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_mistaken_folders(tmp_path / "work", adapter_folder)
    monkeypatch.chdir(tmp_path / "work")


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: " ".join(mistake.command))
def test_a_mistake_names_the_next_step(alone: Tenora, site: tuple[str, str], tenant_key: str, mistake: Mistake) -> None:
    url, admin_key = site
    keys = {TENANT: tenant_key, PLATFORM: admin_key}
    access = {"TENORA_URL": url, "TENORA_KEY": keys[mistake.by]} if mistake.by in keys else {}
    result = alone(*mistake.command, exit_code=mistake.exit_code, **access)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert mistake.step in errors[0]
    assert errors[0].endswith((".", "?"))
    others = [line for line in result.stderr.splitlines() if line and line not in errors]
    assert all(line.startswith(("- ", "Delete ")) for line in others)
    assert result.stdout.strip() == ""  # a question leaves a space


@pytest.mark.parametrize("arguments", [["serve"], ["server", "serve"], ["serve", "--demo"]], ids=" ".join)
def test_a_port_in_use_is_named(alone: Tenora, arguments: list[str], tmp_path: Path) -> None:
    base = {} if "--demo" in arguments else {"TENORA_BASE_MODEL": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = alone(*arguments, "--port", port, exit_code=1, **base)
    assert result.stderr == (
        f"error: Cannot listen on 127.0.0.1 port {port}: Address already in use. Choose another port with --port, or "
        "stop the server that uses it.\n"
    )
    assert result.stdout == ""


def test_an_unknown_setting_matters_to_the_server_alone(alone: Tenora, tenora: Tenora) -> None:
    assert "TENORA_FOO" in alone("migrate", "--check", exit_code=2, TENORA_FOO="1").stderr
    tenora("tenants", "list", TENORA_FOO="1")


def test_commands_without_a_server_go_on(alone: Tenora) -> None:
    alone("init", "--json")
    alone("gc", "--dry-run")
    alone("audit", "verify")
