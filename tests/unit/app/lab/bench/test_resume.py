"""Resumed upload: `tenora adapters push` is killed repeatedly, against a server in another process."""

from pathlib import Path

import pytest

from app.lab.bench.resume import run

pytestmark = pytest.mark.slow

S3_PART = 5 * 2**20


def test_ten_kills_cost_no_more_than_a_twentieth(tmp_path: Path) -> None:
    outcome = run(tmp_path, size=64_000_000, kills=10, seed=1, s3=False)
    assert outcome.digest_matches
    # The upload may finish before the last kill points.
    assert 8 <= len(outcome.kills) <= 10
    assert 0 < outcome.sent_twice <= 0.05


def test_parts_that_go_to_the_bucket_do_not_pass_the_server(tmp_path: Path) -> None:
    outcome = run(tmp_path, size=32_000_000, kills=2, seed=2, s3=True)
    assert outcome.digest_matches
    assert outcome.kills
    assert outcome.server_part < 0.01
    assert outcome.sent_bytes <= outcome.adapter_bytes * 1.01 + len(outcome.kills) * S3_PART
