"""An interrupted publication resumes, also from another process."""

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tenora_client import Client, Progress
from tests.support.site import Site, Unit

#: Publishes in parts of 256 KiB, and dies without any clean-up once one of them has been sent.
KILLED = """
import os, sys
from tenora_client import Client

def die(progress):
    if progress.phase == "sending" and progress.done_bytes > 2 * 2**18:
        os._exit(9)

Client(sys.argv[1], sys.argv[2]).adapters.publish("quotes", sys.argv[3], part_bytes=2**18, on_progress=die)
"""


@pytest.fixture
def large(folder: Path) -> Path:
    """The adapter with metadata that makes its weights several parts long."""
    path = folder / "adapter_model.safetensors"
    save_file(load_file(path), path, metadata={"format": "pt", "note": "x" * 1_000_000})
    return folder


def test_a_killed_publication_goes_on_in_another_process(site: Site, unit: Unit, tenora: Client, large: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, site.url, unit.key, large], timeout=120, check=False)
    assert done.returncode == 9
    with site.client(unit.key) as http:
        (upload,) = http.get("/v1/adapters/quotes/uploads").json()["data"]
        received = http.get(f"/v1/adapters/quotes/uploads/{upload['id']}").json()["files"]
    there = sum(len(file["received"]) for file in received.values())
    assert there > 0
    seen: list[Progress] = []
    version = tenora.adapters.publish("quotes", large, part_bytes=2**18, on_progress=seen.append)
    assert (version.number, version.state) == (1, "ready")
    sending = [progress.done_bytes for progress in seen if progress.phase in ("sending", "checking")]
    assert sending[0] == 0
    assert sending[1] > 0  # the parts that the server has, at once
    assert sending[-1] == seen[-1].total_bytes
