"""Fleets under kills: nothing is lost but the requests of a killed gateway, and records equal answers."""

from pathlib import Path

from app.demo.train import Demo
from tests.endurance import batches, fleet
from tests.support.postgres import running_postgres


def test_kills_of_each_kind_lose_and_double_nothing(trained_demo: Demo, tmp_path: Path, seed: int) -> None:
    with running_postgres() as url:
        books = fleet.run(tmp_path, trained_demo, fleet.Options(requests=200, streams=16, seed=seed), url)
    assert books.right, books
    assert any(ends.get("error event") for ends in books.streams.values()), books


def test_a_killed_replica_loses_no_line_of_a_batch(trained_demo: Demo, tmp_path: Path, seed: int) -> None:
    options = batches.Options(lines=300, adapters=10, kills=0, engine_kills=0, replica_kills=1, seed=seed)
    books = batches.run(tmp_path, trained_demo, options)
    assert books.right, books
    assert not books.leftovers["batch_results"]
