"""``tenora server bench simulate`` from command-line arguments to output file."""

import json
from pathlib import Path

import pytest

import app.lab.simulator.__main__ as command
from tests.support.never_drains import NeverDrains

ARGUMENTS = ["--requests", "3000", "--adapters", "1000", "--tenants", "100", "--slots", "8", "--window", "32"]


def test_the_table_and_the_file_say_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "simulation.json"
    assert command.main([*ARGUMENTS, "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    outcome = result["outcome"]
    assert outcome["violated"] == 0
    assert outcome["served"] + outcome["cancelled"] + sum(outcome["refused"].values()) == 3000
    assert result["workload"]["adapters"] == 1000
    assert result["machine"]["slots"] == 8
    assert {"date", "processor", "commit"} <= result["environment"].keys()
    assert (
        outcome["ttft_s"]["others"]["p50"] <= outcome["ttft_s"]["others"]["p99"] <= outcome["ttft_s"]["others"]["max"]
    )
    shown = capsys.readouterr().out
    for said in ("3,000 requests simulated", "TTFT of hostile", "hit rate, slots", "beyond the bound"):
        assert said in shown


def test_a_wait_beyond_its_bound_ends_with_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Admission", NeverDrains)
    arguments = [*ARGUMENTS, "--slots", "1", "--window", "128", "--alpha", "0.005", "--load", "0.7", "--cv", "1"]
    assert command.main([*arguments, "--hostile", "0"]) == 1
    assert "beyond the bound" in capsys.readouterr().out
