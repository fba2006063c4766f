"""`deploy/gpu/check.sh` on a CPU: its part a with the demo's base, and its last table."""

import json
import subprocess
from pathlib import Path

import pytest

from app.demo.train import Demo

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300


def test_the_kernels_pass_and_leave_their_figures(tmp_path: Path, trained_demo: Demo) -> None:
    """Compare LoRA kernels with matrix products. The other parts take minutes: run the script for them."""
    command = ["sh", "deploy/gpu/check.sh", "--device", "cpu", "--quick", "--only", "a"]
    options = ["--base", str(trained_demo.base), "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "a.log").read_text()[-2000:]
    part = json.loads((tmp_path / "a-kernels.json").read_text())
    assert part["failures"] == []
    assert [check["report"]["layers"] for check in part["figures"]["checks"]] == [4, 4]
    assert "│ kernels" in done.stdout
