"""Batches under kills of the API process and of the engine: each line once, and every sum equal to the output."""

from pathlib import Path

import pytest

from app.demo.train import Demo
from tests.endurance.batches import Options, run
from tests.support.postgres import running_postgres


@pytest.mark.slow
@pytest.mark.parametrize(("database", "servers"), [("sqlite", 1), ("postgresql", 2)])
def test_kills_lose_no_line_and_charge_none_twice(
    trained_demo: Demo, tmp_path: Path, seed: int, database: str, servers: int
) -> None:
    options = Options(lines=300, adapters=5, kills=2, engine_kills=1, servers=servers, seed=seed)
    if database == "sqlite":
        books = run(tmp_path, trained_demo, options)
    else:
        with running_postgres() as url:
            books = run(tmp_path, trained_demo, options, url)
    assert books.right, books
    assert not books.leftovers["batch_results"]
