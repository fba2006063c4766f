"""Commands for labels, cards, limits, quotas and shares."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenora_client.cli.descriptions import with_alias_words
from tests.support.cli import Tenora

CARD = "# Prices\n\n\x1b[31m[red]<b>bold</b>\n"


@pytest.fixture
def tenant(tenora: Tenora, new_slug: Callable[[], str]) -> str:
    slug = f"described-{new_slug()}"
    tenora("tenants", "create", slug)
    return slug


@pytest.fixture
def version(tenora: Tenora, tenant: str, adapter_folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = tenora.json(
        "adapters", "push", str(adapter_folder), "--tenant", tenant, "--adapter", "prices"
    )
    return made


def test_a_version_is_described_shown_and_found(
    tenora: Tenora, tenant: str, version: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "card.md").write_text(CARD)
    (tmp_path / "defaults.json").write_text('{"temperature": 0.5}')
    of = ("--tenant", tenant)
    described = tenora.json(
        "adapters",
        "describe",
        "prices@1",
        *of,
        *("--label", "team=x", "--label", "note=a=b", "--card", str(tmp_path / "card.md")),
        *("--training-run", "https://runs.example/7", "--defaults", str(tmp_path / "defaults.json")),
    )
    assert (described["labels"], described["card"]) == ({"note": "a=b", "team": "x"}, CARD)
    assert described["defaults"] == {"temperature": 0.5}
    shown = tenora("adapters", "show", "prices@1", *of).stdout
    for words in ("team -> x", "https://runs.example/7", "peft_version", version["provenance"]["base"]["digest"]):
        assert words in shown
    # The card is printed as plain text, without terminal escape sequences.
    assert shown.endswith("\n# Prices\n\n[31m[red]<b>bold</b>\n\n")
    assert "\x1b" not in shown
    assert [row["name"] for row in tenora.json("adapters", "list", *of, "--label", "team=x", "--state", "ready")] == [
        "prices"
    ]
    for narrowed in (("--label", "team=y"), ("--state", "retired"), ("--base", "another")):
        assert "no adapters" in tenora("adapters", "list", *of, *narrowed).stderr
    assert tenora.json("adapters", "describe", "prices@1", *of, "--no-labels")["labels"] == {}
    assert (
        tenora.json("adapters", "describe", "prices@1", *of, "--training-run", "")["provenance"]["training_run"] is None
    )


@pytest.mark.parametrize("arguments", [("prices@1",), ("prices", "--label", "a=b"), ("prices@1", "--label", "a")])
def test_what_cannot_be_described_is_a_usage_error(tenora: Tenora, arguments: tuple[str, ...]) -> None:
    assert "error: " in tenora("adapters", "describe", *arguments, exit_code=2).stderr


def test_aliases_are_written_as_people_say_them() -> None:
    aliases = {"default": {"12": 100}, "canary": {"9": 95, "12": 5}}
    assert with_alias_words({"aliases": aliases})["aliases"] == {"default": "12", "canary": "12 (5), 9 (95)"}


def test_defaults_that_are_no_json_object(tenora: Tenora, tmp_path: Path) -> None:
    for content in ("[]", "{", "\udc80".encode("utf-8", "surrogateescape")):
        path = tmp_path / "defaults.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        result = tenora("adapters", "describe", "prices@1", "--defaults", str(path), exit_code=2)
        assert "defaults.json" in result.stderr


def test_limits_are_shown_set_and_lifted(tenora: Tenora, tenant: str) -> None:
    assert set(tenora.json("tenants", "limits", tenant).values()) == {None}
    shown = tenora("tenants", "limits", tenant, "--requests-per-minute", "60", "--tokens-per-day", "1000").stdout
    assert "requests_per_minute" in shown
    assert "no limit" in shown
    kept = tenora.json("tenants", "limits", tenant, "--tokens-per-day", "none")
    assert {name: most for name, most in kept.items() if most is not None} == {"requests_per_minute": 60}
    key = tenora.json("keys", "create", "app", "--tenant", tenant)["id"]
    kept = tenora.json("keys", "limits", key, "--tenant", tenant, "--concurrent-requests", "2")
    assert {name: most for name, most in kept.items() if most is not None} == {"concurrent_requests": 2}
    wrong = tenora("keys", "limits", key, "--tenant", tenant, "--tokens-per-minute", "many", exit_code=2)
    assert "--tokens-per-minute is 'many'." in wrong.stderr
    assert "--tenant" in tenora("keys", "limits", key, exit_code=2).stderr


@pytest.mark.usefixtures("version")
def test_an_adapters_limits_are_shown_set_and_lifted(tenora: Tenora, tenant: str) -> None:
    command = ("adapters", "limits", "prices", "--tenant", tenant)
    assert set(tenora.json(*command).values()) == {None}
    kept = tenora.json(*command, "--requests-per-minute", "60", "--concurrent-requests", "2")
    assert (kept["requests_per_minute"], kept["concurrent_requests"]) == (60, 2)
    assert "no limit" in tenora(*command, "--requests-per-minute", "none").stdout
    assert tenora.json(*command)["concurrent_requests"] == 2


def test_prices_and_budgets_of_money(tenora: Tenora, tenant: str, version: dict[str, Any]) -> None:
    model = f"{tenant}/{version['adapter']}"
    made = tenora.json("prices", "set", model, "--prompt", "0.15", "--output", "0.6")
    assert made == {"model": model, "prompt": "0.15", "cached": "0.15", "output": "0.6", "batch": "1"}
    assert made in tenora.json("prices", "list")["data"]
    halved = tenora.json("prices", "set", model, "--prompt", "0.15", "--output", "0.6", "--batch", "0.5")
    assert halved == made | {"batch": "0.5"}
    assert "USD per million tokens" in tenora("prices", "list").stderr
    tenora("prices", "unset", model)
    assert "has no price" in tenora("prices", "unset", model, exit_code=1).stderr
    kept = tenora.json("tenants", "limits", tenant, "--cost-per-month", "12.50")
    assert kept["cost_per_month"] == "12.5"
    assert tenora.json("tenants", "limits", tenant, "--cost-per-month", "none")["cost_per_month"] is None
    assert "cost_per_day is 'ten'" in tenora("tenants", "limits", tenant, "--cost-per-day", "ten", exit_code=1).stderr


def test_a_key_sees_what_is_left(tenora: Tenora, tenant: str) -> None:
    own = tenora.json("keys", "create", "app", "--tenant", tenant)
    assert "no limits" in tenora("limits", TENORA_KEY=own["key"]).stderr
    tenora("tenants", "limits", tenant, "--cost-per-day", "1.5", "--tokens-per-request", "7")
    tenora("keys", "limits", own["id"], "--tenant", tenant, "--requests-per-minute", "60")
    shown = tenora("limits", TENORA_KEY=own["key"]).stdout
    for words in ("cost_per_day", "1.5", "tokens_per_request", "requests_per_minute", "resets in"):
        assert words in shown
    left = tenora.json("limits", TENORA_KEY=own["key"])
    assert (left["currency"], [one["limit"] for one in left["key"]]) == ("USD", ["requests_per_minute"])


def test_usage_is_shown(tenora: Tenora, tenant: str) -> None:
    report = tenora.json("usage", "--tenant", tenant, "--by", "adapter,day")
    assert (report["data"], report["total"]["requests"]) == ([], 0)
    assert "There was no usage" in tenora("usage", "--tenant", tenant).stderr
    header = tenora("usage", "--tenant", tenant, "--by", "key,hour", "--csv").stdout
    assert header.startswith("key,start,requests,failed,prompt_tokens")
    assert "'colour' is not a group" in tenora("usage", "--by", "colour", exit_code=2).stderr
    assert "--own" in tenora("usage", "--own", "--tenant", tenant, exit_code=2).stderr


def test_a_tenants_key_shows_its_own_usage(tenora: Tenora, tenant: str) -> None:
    reader = tenora.json("keys", "create", "reader", "--tenant", tenant, "--scope", "usage:read")["key"]
    report = tenora.json("usage", TENORA_KEY=reader)
    assert (report["data"], report["total"]["requests"]) == ([], 0)
    assert report == tenora.json("usage", "--own", "--to", report["end"], "--from", report["start"], TENORA_KEY=reader)
    header = tenora("usage", "--csv", TENORA_KEY=reader).stdout
    assert header.startswith("adapter,requests,failed")
    app = tenora.json("keys", "create", "app", "--tenant", tenant, "--scope", "inference")["key"]
    refused = tenora("usage", exit_code=1, TENORA_KEY=app).stderr
    assert "lacks the scope usage:read" in refused


def test_a_quota_is_shown_set_and_lifted(tenora: Tenora, tenant: str, version: dict[str, Any]) -> None:
    assert tenora.json("tenants", "quota", tenant)["quota"]["bytes"] is None
    limits = ("--adapters", "10", "--bytes", "1000000", "--pinned-slots", "1")
    shown = tenora("tenants", "quota", tenant, *limits).stdout
    assert re.search(r"adapters[ │|]+1[ │|]+10\b", shown)
    assert re.search(rf"bytes[ │|]+{version['size_bytes']}[ │|]+1000000\b", shown)
    kept = tenora.json("tenants", "quota", tenant, "--bytes", "none")
    assert kept["quota"] == {"adapters": 10, "versions": None, "bytes": None, "rank": None, "pinned_slots": 1}
    assert kept["used"]["versions"] == 1
    for wrong in ("-1", "1.5", "x", "", "9" * 20, "\u0663"):
        assert "--rank is" in tenora("tenants", "quota", tenant, f"--rank={wrong}", exit_code=2).stderr


def test_an_adapter_is_shared_listed_and_unshared(
    tenora: Tenora, tenant: str, version: dict[str, Any], new_slug: Callable[[], str]
) -> None:
    other = f"other-{new_slug()}"
    tenora("tenants", "create", other)
    of = ("prices", "--tenant", tenant)
    assert tenora.json("adapters", "share", *of, "--with", other)["recipient"] == other
    assert other in tenora("adapters", "share", *of, "--with", other).stdout
    assert [row["recipient"] for row in tenora.json("adapters", "shares", *of)] == [other]
    key = tenora("keys", "create", "ci", "--tenant", other, "--scope", "adapters:read").stdout.strip()
    places: tuple[dict[str, Any], ...] = ({"TENORA_KEY": key}, {})
    for place in places:
        tenant_option = () if place else ("--tenant", other)
        assert f"{tenant}/prices" in tenora("adapters", "shared", *tenant_option, **place).stdout
    result = tenora("adapters", "unshare", *of, "--with", other)
    assert (result.stdout, result.stderr) == ("", f"prices is no longer shared with {other}.\n")
    assert "No adapters are shared" in tenora("adapters", "shared", TENORA_KEY=key).stderr
    assert "The adapter is not shared." in tenora("adapters", "shares", *of).stderr
    assert "404" in tenora("adapters", "unshare", *of, "--with", other, exit_code=1).stderr
    error = json.loads(tenora("adapters", "share", *of, "--with", "unknown-tenant", "--json", exit_code=1).stderr)
    assert error["error"]["param"] == "recipient"
    tenora("adapters", "share", *of, "--with", "RETAIL", exit_code=2)
