"""Alias and canary commands against a live server."""

import json

import pytest

from tests.support.serving import peft_files


@pytest.fixture
def prices(tenora, new_slug, tmp_path):
    """Create a tenant whose adapter ``prices`` has versions 1 and 2, and return the options that name the tenant."""
    slug = new_slug()
    tenora("tenants", "create", slug)
    for seed in (1, 2):
        folder = tmp_path / f"peft-{seed}"
        peft_files(folder, seed=seed)
        tenora("adapters", "push", str(folder), "--tenant", slug, "--adapter", "prices")
    return ("--tenant", slug)


def test_an_alias_has_a_whole_life_by_command(tenora, prices):
    made = tenora.json("adapters", "promote", "prices@1", "--alias", "stable", *prices)
    assert (made["model"], made["weights"]) == ("prices:stable", {"1": 100})
    split = tenora.json(
        "adapters", "split", "prices", "--alias", "stable", "--weight", "1=95", "--weight", "2=5", *prices
    )
    assert split["weights"] == {"1": 95, "2": 5}
    assert "1 -> 95" in tenora("adapters", "aliases", "prices", *prices).stdout
    back = tenora.json("adapters", "rollback", "prices", "--alias", "stable", *prices)
    assert back["weights"] == {"1": 100}
    history = tenora.json("adapters", "history", "prices", "--alias", "stable", *prices)
    assert [change["action"] for change in history] == ["rollback", "split", "move"]
    assert "rollback" in tenora("adapters", "history", "prices", "--alias", "stable", *prices).stdout
    tenora("adapters", "unalias", "prices", "--alias", "stable", *prices, exit_code=1)
    tenora("adapters", "unalias", "prices", "--alias", "stable", "--yes", *prices)
    assert [alias["name"] for alias in tenora.json("adapters", "aliases", "prices", *prices)] == ["default"]


def test_default_is_the_alias_that_is_meant_if_none_is_named(tenora, prices):
    assert tenora.json("adapters", "promote", "prices@1", *prices)["name"] == "default"
    assert tenora.json("adapters", "rollback", "prices", *prices)["weights"] == {"2": 100}


def test_a_revision_guards_against_another_admin(tenora, prices):
    revision = tenora.json("adapters", "promote", "prices@1", *prices)["revision"]
    guarded = ("adapters", "promote", "prices@2", "--if-revision", str(revision), *prices)
    tenora(*guarded)
    refused = json.loads(tenora(*guarded, "--json", exit_code=1).stderr)["error"]
    assert refused["code"] == "precondition_failed"


def test_a_canary_is_started_shown_and_cancelled(tenora, prices):
    tenora("adapters", "promote", "prices@1", *prices)
    steps = ("--step", "5:10m", "--step", "25:90s", "--step", "100:1h")
    started = tenora.json("adapters", "canary", "prices@2", *steps, "--max-error-rate", "0.1", *prices)
    assert started["state"] == "running"
    assert started["policy"]["steps"] == [
        {"weight": 5, "seconds": 600},
        {"weight": 25, "seconds": 90},
        {"weight": 100, "seconds": 3600},
    ]
    assert (started["policy"]["max_error_rate"], started["policy"]["min_requests"]) == (0.1, 20)
    shown = tenora("adapters", "canary-status", "prices", *prices).stdout
    for text in ("running", "1 of 3, 5%", "1 (baseline)", "2 (candidate)", "of 600 s, 0 of 20 requests"):
        assert text in shown
    assert tenora.json("adapters", "canary-cancel", "prices", *prices)["state"] == "cancelled"
    assert tenora.json("adapters", "aliases", "prices", *prices)[0]["weights"] == {"1": 100}
    assert "no running canary" in tenora("adapters", "canary-cancel", "prices", *prices, exit_code=1).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("promote", "prices"),
        ("promote", "prices@0"),
        ("promote", "prices@1", "--alias", "No"),
        ("split", "prices"),
        ("split", "prices", "--weight", "1"),
        ("split", "prices", "--weight", "1=0"),
        ("split", "prices", "--weight", "1=5", "--weight", "1=6"),
        ("canary", "prices@2", "--step", "5"),
        ("canary", "prices@2", "--step", "x:60"),
        ("canary", "prices@2", "--max-error-rate", "nan"),
        ("rollback", "prices", "--if-revision", "0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(alone, arguments):
    alone("adapters", *arguments, exit_code=2, TENORA_URL="http://127.0.0.1:1", TENORA_KEY="k")
