"""Parts of the card check that need no engine; tests/engine/test_check.py runs part a."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from app.lab.bench.card.__main__ import app
from app.lab.bench.card.lora_overhead import without_lora
from app.verify.reference import round_to_fp8


def test_vllms_arguments_without_those_of_lora() -> None:
    arguments = [
        "--model",
        "base",
        "--enable-lora",
        "--max-loras",
        "4",
        "--max-cpu-loras",
        "4",
        "--max-lora-rank",
        "16",
    ]
    arguments += ["--lora-target-modules", "q_proj", "k_proj", "--dtype", "bfloat16"]
    assert without_lora(arguments) == ["--model", "base", "--dtype", "bfloat16"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_rounds_by_at_most_a_sixteenth(dtype: torch.dtype) -> None:
    values = torch.randn(64, 256, generator=torch.Generator().manual_seed(3)).to(dtype)
    rounded = round_to_fp8(values)
    assert rounded.dtype == dtype
    # The format has three mantissa bits; numbers far below the row's maximum are subnormal.
    smallest = values.abs().amax(-1, keepdim=True) / 448 * 2**-6
    error = (rounded.float() - values.float()).abs()
    assert (error <= torch.maximum(values.abs().float() * 2**-3.9, smallest.float())).all()
    assert (error > 0).float().mean() > 0.5


def test_an_unknown_part_is_named() -> None:
    done = CliRunner().invoke(app, ["run", "f", "--out", "nowhere"])
    assert done.exit_code == 2
    assert "There is no part f" in done.output


def test_the_last_table_has_a_line_for_each_part(tmp_path: Path) -> None:
    machine = {"card": "NVIDIA H200", "cores": 16, "versions": {"vllm": "0.32.0"}, "commit": "0123456789abcdef"}
    for name, failures in (("a-kernels", []), ("b-parity", ["rank-16: The mean difference of logprobs is 1."])):
        content = machine | {"part": name[2:], "failures": failures, "seconds": 61.4, "summary": f"{name} was run"}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    done = CliRunner().invoke(app, ["show", str(tmp_path)])
    assert done.exit_code == 0
    assert "NVIDIA H200, 16 cores; vllm 0.32.0; commit 0123456789ab" in done.output
    lines = [line.split("│")[1:-1] for line in done.output.splitlines() if "was run" in line]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["kernels", "passed", "61", "a-kernels was run"],
        ["parity", "failed", "61", "b-parity was run"],
    ]
