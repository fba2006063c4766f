"""Every start of an engine checks its LoRA kernels, and one whose kernels are wrong answers nobody."""

import re
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from app.demo.train import Demo
from tests.e2e.broken_workers import DEFECT, DEFECTS
from tests.e2e.server import START_S, Server, environment, free_port, set_up

ROOT = Path(__file__).parents[2]
REFUSAL = re.compile(
    r"the LoRA kernels compute wrong numbers on this machine: model\.layers\.0\.[a-z_.]+, rank 16, \d+ tokens: "
    r"found an error of [0-9.e+-]+, allowed [0-9.e+-]+\. Set VLLM_TUNED_CONFIG_FOLDER"
)


@pytest.mark.parametrize("defect", DEFECTS)
def test_an_engine_whose_kernels_are_wrong_answers_nobody(tmp_path: Path, trained_demo: Demo, defect: str) -> None:
    set_up(tmp_path, trained_demo.base)
    command = [sys.executable, "-m", "tests.e2e.broken_workers", "serve", "--port", str(free_port())]
    variables = environment(tmp_path, trained_demo.base) | {DEFECT: defect, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=START_S, check=False
    )
    assert ended.returncode == 1
    assert REFUSAL.search(ended.stderr), ended.stderr


def test_a_sound_engine_says_when_it_was_checked(server: Server) -> None:
    with server.client(server.admin_key) as admin:
        kernels = admin.get("/admin/engine").json()["kernels"]
    assert datetime.fromisoformat(kernels["passed_at"]).timestamp() <= time.time()
    assert kernels["failures"] == server.metric("tenora_engine_kernel_check_failures_total") == 0
    assert kernels["seconds"] == server.metric("tenora_engine_kernel_check_seconds") > 0
