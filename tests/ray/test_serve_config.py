"""Nodes that `ray start` makes, and a configuration of Serve that an operator sends, as on Kubernetes."""

import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.light_processes import clean_environment
from tests.support.server import START_S, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef" * 4
HEAD, GATEWAY = "127.0.0.2", "127.0.0.3"
CONFIG = {
    "proxy_location": "Disabled",
    "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
    "applications": [
        {
            "name": "tenora",
            "import_path": "tests.support.light_fleet:build",
            "route_prefix": None,
            "args": {"min_replicas": 2, "max_replicas": 2, "cpus": 0.1},
        }
    ],
}


def free_port() -> int:
    with socket.create_server((HEAD, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def variables(home: Path) -> dict[str, str]:
    return clean_environment() | {
        "PYTHONPATH": str(ROOT),
        "TENORA_HOME": str(home),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


@contextmanager
def node(home: Path, folder: str, *arguments: str) -> Iterator[None]:
    """Run `ray start --block` for the duration of the block, and check that it leaves no process behind."""
    command = [str(Path(sys.executable).parent / "ray"), "start", "--block", f"--temp-dir={folder}", *arguments]
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(command, env=variables(home), cwd=ROOT, stdout=log, stderr=log)
    try:
        yield
    finally:
        left = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert psutil.wait_procs(left, timeout=60)[1] == []


def test_an_operator_deploys_replicas_that_a_gateway_reaches(tmp_path: Path) -> None:
    port, dashboard, agents = free_port(), free_port(), (free_port(), free_port())
    url = f"http://{HEAD}:{dashboard}/api/serve/applications/"
    headers = {"authorization": f"Bearer {TOKEN}"}
    # The paths of Ray's sockets are limited in length.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        head = (f"--node-ip-address={HEAD}", f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=1")
        more = ("--head", f"--dashboard-host={HEAD}", f"--dashboard-agent-listen-port={agents[0]}")
        stack.enter_context(node(tmp_path, folder, *head, *more))
        until(lambda: answers(url, headers), START_S)
        assert httpx.get(url, timeout=30).status_code == 401
        assert httpx.put(url, json=CONFIG, headers={"authorization": "Bearer 0"}, timeout=30).status_code == 403
        job, jobs = {"entrypoint": f"mkdir {tmp_path / 'ran'}"}, f"http://{HEAD}:{agents[0]}/api/job_agent/jobs/"
        assert httpx.post(jobs, json=job, timeout=30).status_code == 401
        assert httpx.post(jobs, json=job, headers={"authorization": "Bearer 0"}, timeout=30).status_code == 403
        assert not (tmp_path / "ran").exists()
        assert httpx.post(jobs, json=job, headers=headers, timeout=60).status_code == 200
        until((tmp_path / "ran").exists, START_S)
        # A gateway needs a node of the cluster on its machine, which offers no cores.
        joined = (f"--address={HEAD}:{port}", f"--node-ip-address={GATEWAY}", "--num-cpus=0")
        stack.enter_context(node(tmp_path, folder, *joined, f"--dashboard-agent-listen-port={agents[1]}"))
        sent = httpx.put(url, json=CONFIG, headers=headers, timeout=60)
        assert sent.status_code == 200, sent.text
        until(lambda: state(url, headers) == "RUNNING", START_S)
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.light_client", str(tmp_path)],
            cwd=ROOT,
            env=variables(tmp_path) | {"TENORA_RAY__ADDRESS": f"{HEAD}:{port}", "TENORA_RAY__HOST": GATEWAY},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout == "events 1\nevents 21\n", done.stderr


def answers(url: str, headers: dict[str, str]) -> bool:
    try:
        return httpx.get(url, headers=headers, timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def state(url: str, headers: dict[str, str]) -> str | None:
    applications = httpx.get(url, headers=headers, timeout=30).json()["applications"]
    return applications.get("tenora", {}).get("status")
