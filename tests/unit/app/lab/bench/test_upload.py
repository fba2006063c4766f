"""Upload workload on an adapter that is small enough for every test run and large enough to reveal buffering."""

from pathlib import Path
from typing import Any

import pytest

from app.lab.bench.upload import run, summary

pytestmark = pytest.mark.slow

MIB = 2**20


def test_the_server_takes_an_upload_without_holding_it(tmp_path: Path) -> None:
    rounds = run(tmp_path, size=192 * MIB, rounds=2)
    size = (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size
    assert size > 180 * MIB
    assert all(done.peak_bytes - done.before_bytes <= 64 * MIB for done in rounds)
    blobs = [path.stat().st_size for path in (tmp_path / "home" / "blobs" / "sha256").glob("*/*")]
    assert blobs.count(size) == 2
    shown: dict[str, Any] = summary(rounds, size)
    assert shown["adapter_bytes"] == size
    assert len(shown["rounds"]) == 2
