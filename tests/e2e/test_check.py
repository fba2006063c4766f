"""`deploy/gpu/check.sh` on a CPU: all five parts with the demo's base."""

import json
import subprocess
from pathlib import Path
from typing import Any

from app.demo.train import Demo
from app.lab.bench.card.lora_overhead import OFF

ROOT = Path(__file__).parents[2]
#: It may take 6 minutes on two otherwise idle cores.
TIMEOUT_S = 900


def test_every_part_passes_and_leaves_its_figures(tmp_path: Path, trained_demo: Demo) -> None:
    command = ["sh", "deploy/gpu/check.sh", "--device", "cpu", "--quick"]
    options = ["--base", str(trained_demo.base), "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    logs = "".join(path.read_text()[-2000:] for path in sorted(tmp_path.glob("?.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    parts: dict[str, dict[str, Any]] = {
        path.name[0]: json.loads(path.read_text()) for path in tmp_path.glob("?-*.json")
    }
    assert {part: content["failures"] for part, content in parts.items()} == {part: [] for part in "abcde"}
    assert [one["report"]["layers"] for one in parts["a"]["figures"]["checks"]] == [4, 4]
    assert {*parts["b"]["figures"]["verdicts"]} == {*parts["e"]["figures"]["verdicts"]} == {"base", "rank-8", "rank-16"}
    cells = parts["c"]["figures"]["cells"]
    assert {cell["server"] for cell in cells} == {OFF, "vllm", "tenora"}
    assert all(rate > 0 for cell in cells for rate in cell["output_tokens_per_s"])
    assert {one["server"] for one in parts["d"]["figures"]["coldload"]["rounds"]} == {"tenora", "vllm"}
    for part in ("kernels", "parity", "overhead", "cold", "quantised"):
        assert f"│ {part}" in done.stdout
