"""Ctrl-C in a push: a real signal to a real process, in the middle of an upload."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

from tests.support.cli import Tenora
from tests.support.s3server import CuttingProxy
from tests.support.server import until

WEIGHTS = "adapter_model.safetensors"
PART_BYTES = 2**18


@pytest.fixture
def large(adapter_folder: Path, tmp_path: Path) -> Path:
    """The adapter with metadata that makes its weights several parts long."""
    folder = shutil.copytree(adapter_folder, tmp_path / "large")
    save_file(load_file(folder / WEIGHTS), folder / WEIGHTS, metadata={"format": "pt", "note": "x" * 1_000_000})
    return folder


def test_an_interrupted_push_goes_on_where_it_was(
    tenora: Tenora, site: tuple[str, str], large: Path, new_slug: Callable[[], str], tmp_path: Path
) -> None:
    """The network stalls, which is when people press Ctrl-C. What arrived before is not sent again."""
    url, key = site
    tenant = new_slug()
    tenora("tenants", "create", tenant)

    def push(through: str) -> "subprocess.Popen[str]":
        options = ["--tenant", tenant, "--adapter", "prices", "--part-mb", str(PART_BYTES / 2**20)]
        program = [sys.executable, "-B", "-m", "tenora_client", "adapters", "push", str(large), *options]
        variables = {
            "TENORA_URL": through,
            "TENORA_KEY": key,
            "XDG_CONFIG_HOME": str(tmp_path),
            "PATH": os.environ["PATH"],
        }
        return subprocess.Popen(program, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def arrived() -> int:
        path = f"{url}/admin/tenants/{tenant}/adapters/prices/uploads"
        with httpx.Client(headers={"authorization": f"Bearer {key}"}, trust_env=False) as http:
            uploads = http.get(path).json()["data"]
            files = http.get(f"{path}/{uploads[0]['id']}").json()["files"] if uploads else {}
        return PART_BYTES * len(files[WEIGHTS]["received"]) if files else 0

    with CuttingProxy(url) as network:
        network.up, network.stall = 3 * PART_BYTES, True
        stopped = push(network.url)
        until(lambda: arrived() and network.limited.is_set(), 60)
        stopped.send_signal(signal.SIGINT)
        try:
            output, errors = stopped.communicate(timeout=60)
        finally:
            stopped.kill()
    assert (stopped.returncode, output) == (130, "")
    assert errors.splitlines()[-1] == "Interrupted. Run the same command again to resume."
    assert "Traceback" not in errors
    there = arrived()
    with CuttingProxy(url) as network:
        resumed = push(network.url)
        output, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    assert "Resuming upload" in errors
    assert "prices@1" in output
    missing = (large / WEIGHTS).stat().st_size - there
    assert missing < network.carried["up"] < missing + there
