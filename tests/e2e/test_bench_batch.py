"""``tenora server bench batch --quick --interactive`` from its command to its files, with real engines.

The contest with other ways to run a batch takes four minutes, so it is run by hand.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from app.demo.train import Demo
from tests.support.server import TENORA

pytestmark = pytest.mark.slow

TIMEOUT_S = 900


def bench(home: Path, demo: Demo, *options: str) -> dict[str, dict[str, Any]]:
    """Run one quick round, and return the metrics of each side."""
    if not (home / "bench").exists():
        (home / "bench").mkdir()
        (home / "bench" / "demo").symlink_to(demo.base.parent)
    out = home / "result.json"
    command = [TENORA, "server", "bench", "batch", "--quick", "--out", str(out), *options]
    environment = {**os.environ, "TENORA_HOME": str(home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert imread(out.with_suffix(".png")).any()
    return {one["side"]: one["figures"] for one in json.loads(out.read_text())["rounds"]}


def test_requests_are_measured_alone_and_during_a_batch(trained_demo: Demo, tmp_path: Path) -> None:
    figures = bench(tmp_path, trained_demo, "--interactive")
    assert list(figures) == ["alone", "during the batch"]
    assert all(0 < one["ttft_p50_ms"] <= one["ttft_max_ms"] for one in figures.values())
    assert figures["during the batch"]["lines_done"] > 0
    # The file has every round, so the same command measures nothing.
    assert bench(tmp_path, trained_demo, "--interactive") == figures
