"""Batches under kills of API processes and of an engine: each line once, and every sum equal to the output."""

from pathlib import Path

from app.demo.train import Demo
from tests.endurance.batches import Options, run
from tests.support.postgres import running_postgres


def test_kills_lose_no_line_and_charge_none_twice(trained_demo: Demo, tmp_path: Path, seed: int) -> None:
    """Kill two servers on one database. ``python -m tests.endurance.batches`` does the same with SQLite, for longer."""
    options = Options(lines=300, adapters=5, kills=2, engine_kills=1, servers=2, seed=seed)
    with running_postgres() as url:
        books = run(tmp_path, trained_demo, options, url)
    assert books.right, books
    assert not books.leftovers["batch_results"]
