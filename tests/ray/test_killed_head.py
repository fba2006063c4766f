"""The process that holds the cluster is killed: what requests get, what ends, and what is left."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.light_cluster import ROOT, light_cluster, light_head
from tests.support.server import START_S

pytestmark = [pytest.mark.slow, pytest.mark.long]


def ask(gateway: "subprocess.Popen[str]", name: str) -> str:
    assert gateway.stdin is not None
    assert gateway.stdout is not None
    gateway.stdin.write(f"{name}\n")
    gateway.stdin.flush()
    while not (line := gateway.stdout.readline()).startswith("told "):
        assert line, "the gateway has ended"
    return line


def test_without_its_head_a_fleet_fails_requests_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.light_caller", str(tmp_path)]
    with light_head(tmp_path, "1") as head:
        record = json.loads((tmp_path / "engines" / "cluster.json").read_text())
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as gateway:
            try:
                assert "pid" in ask(gateway, "first")
                processes = psutil.Process(head.pid).children(recursive=True)
                head.kill()
                head.wait()
                # The replica answers until Ray ends it, about 2 s later.
                for number in itertools.count():
                    if "pid" not in (told := ask(gateway, f"later-{number}")):
                        break
                assert told == "told EngineUnavailable: The cluster of the engine replicas does not answer.\n"
                # Ray ends processes that have lost their head. A supervisor starts the server again.
                assert gateway.wait(START_S) != 0
            finally:
                gateway.kill()
    assert psutil.wait_procs(processes, timeout=START_S)[1] == []
    assert Path(record["folder"]).exists()
    with light_cluster(tmp_path, "1"):
        assert not Path(record["folder"]).exists()
