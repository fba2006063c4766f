"""`deploy/gpu/check.sh` on a CPU: the parts that no other test runs, with the demo's base."""

import json
import subprocess
from pathlib import Path
from typing import Any

from app.demo.train import Demo
from app.lab.bench.card.lora_overhead import OFF

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600


def test_parts_pass_and_leave_their_figures(tmp_path: Path, trained_demo: Demo) -> None:
    """The parts b, d and e take five minutes more. test_verify.py and `tenora bench coldload` run their code."""
    command = ["sh", "deploy/gpu/check.sh", "--device", "cpu", "--quick", "--only", "a,c"]
    options = ["--base", str(trained_demo.base), "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    logs = "".join(path.read_text()[-2000:] for path in sorted(tmp_path.glob("?.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    parts: dict[str, dict[str, Any]] = {
        path.name[0]: json.loads(path.read_text()) for path in tmp_path.glob("?-*.json")
    }
    assert {part: content["failures"] for part, content in parts.items()} == {"a": [], "c": []}
    assert [check["report"]["layers"] for check in parts["a"]["figures"]["checks"]] == [4, 4]
    cells = parts["c"]["figures"]["cells"]
    assert {cell["server"] for cell in cells} == {OFF, "vllm", "tenora"}
    assert all(rate > 0 for cell in cells for rate in cell["output_tokens_per_s"])
    for part in ("kernels", "overhead"):
        assert f"│ {part}" in done.stdout
