"""Kernel check of a real engine, and a server whose engine fails the check."""

import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from app.demo.train import Demo
from app.engine.vllm.kernel_report import BrokenKernels, KernelReport
from tests.support.broken_kernels import DEFECTS, SOUND
from tests.support.broken_workers import DEFECT
from tests.support.server import START_S, Server, environment, free_port, set_up

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reports(trained_demo: Demo) -> dict[str, dict[str, Any]]:
    """Kernel reports of one engine, by the defect of its worker."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TENORA_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.broken_kernels", str(trained_demo.base)],
        env=variables | {"HF_HUB_OFFLINE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("{")))
    return found


def report_of(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "empty"}


def test_a_sound_engine_passes(reports: dict[str, dict[str, Any]]) -> None:
    report = KernelReport.of_workers([report_of(reports[SOUND])])
    # Query, key and value; the output of attention; gate and up; down.
    assert report.layers == 4
    assert report.fault is None


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_refused_with_the_layers_name(reports: dict[str, dict[str, Any]], defect: str) -> None:
    with pytest.raises(BrokenKernels, match=r"layer model\.layers\.0\.self_attn\.qkv_proj, rank (8|16), \d+ tokens"):
        KernelReport.of_workers([report_of(reports[SOUND]), report_of(reports[defect])])


def test_every_slot_is_empty_after_a_check(reports: dict[str, dict[str, Any]]) -> None:
    assert {defect: report["empty"] for defect, report in reports.items()} == dict.fromkeys([SOUND, *DEFECTS], True)


def test_a_server_whose_kernels_are_wrong_never_answers(tmp_path: Path, trained_demo: Demo) -> None:
    set_up(tmp_path, trained_demo.base)
    command = [sys.executable, "-m", "tests.support.broken_workers", "serve", "--port", str(free_port())]
    variables = environment(tmp_path, trained_demo.base) | {DEFECT: next(iter(DEFECTS)), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=START_S, check=False
    )
    assert ended.returncode == 1
    # One line is for people; the log is JSON.
    (said,) = (line for line in ended.stderr.splitlines() if line.startswith("error: "))
    assert said.startswith("error: The server could not start: The LoRA kernels of this machine compute wrong numbers")
    assert "layer model.layers.0.self_attn.qkv_proj, rank" in said
    assert "set VLLM_TUNED_CONFIG_FOLDER" in said


def test_the_engines_status_shows_the_last_check(server: Server) -> None:
    with server.client(server.admin_key) as admin:
        kernels = admin.get("/admin/engine").json()["kernels"]
    assert datetime.fromisoformat(kernels["passed_at"]).timestamp() <= time.time()
    assert kernels["failures"] == server.metric("tenora_engine_kernel_check_failures_total") == 0
    assert kernels["seconds"] == server.metric("tenora_engine_kernel_check_seconds") > 0
