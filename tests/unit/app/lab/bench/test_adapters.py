"""Request order and bookkeeping of the many-adapters benchmark, `tenora server bench adapters`."""

import json
import os
from collections import Counter

import pytest
from fastapi import FastAPI
from rich.console import Console
from rich.progress import Progress

from app.lab.bench import grid
from app.lab.bench.adapters import Grid
from app.lab.bench.grid import Cell, Measured, Options
from app.lab.bench.open_loop import NOT_SENT, Run, Sample
from app.lab.bench.servers import Server
from app.lab.bench.workload import SHORTEST, Arrival
from tests.support.completions import KEY, completions_app
from tests.support.live_server import live_server

pytestmark = pytest.mark.slow

VOCABULARY = 640
NAMES = [f"adapter-{index}" for index in range(9)]
OPTIONS = Options(adapters=(1, 9), alphas=(0.3, 1.0), loads=(10,), seconds=0.2, rounds=2, overload_s=0.1)


def served(seen: list[dict]) -> FastAPI:
    app = completions_app(seen)

    @app.get("/admin/engine")
    async def engine() -> dict:
        return {"slots": {"total": 2}, "tiers": [{"tier": "slot", "hits": len(seen)}]}

    return app


@pytest.fixture
def fleet():
    """Two live servers, and the requests to each."""
    seen: dict[str, list[dict]] = {"tenora": [], "vllm": []}
    with live_server(served(seen["tenora"])) as first, live_server(served(seen["vllm"])) as second:
        servers = {
            name: Server(name, int(url.rpartition(":")[2]), os.getpid(), {"authorization": KEY})
            for name, url in (("tenora", first), ("vllm", second))
        }
        yield servers, seen


@pytest.fixture
def measured(fleet):
    servers, _ = fleet
    starts: list[int] = []

    def start(_stack, number):
        starts.append(number)
        return servers

    with Progress(console=Console(quiet=True)) as progress:
        cells = Grid(OPTIONS, start, NAMES, VOCABULARY, progress)
        found = [one for number in (1, 2) for one in cells.round(number)]
    assert starts == [1, 2]
    return found


def test_every_cell_is_answered_on_every_server_in_every_round(measured):
    assert Counter((one.server, one.cell, one.round) for one in measured) == Counter(
        (server, cell, number) for server in ("tenora", "vllm") for cell in OPTIONS.cells() for number in (1, 2)
    )
    assert OPTIONS.cells() == [Cell(1, 1.0, 10), Cell(9, 0.3, 10), Cell(9, 1.0, 10)]
    for one in measured:
        assert one.metrics["failed"] == 0
        assert one.rate == 0.1 * one.capacity > 0
        assert len(one.samples["due"]) == int(one.rate * OPTIONS.seconds)
        first = next(other for other in measured if (other.round, other.rate) == (one.round, one.rate))
        assert one.samples["due"] == first.samples["due"], "cells of one load are compared with each other"
        assert (one.tiers != []) == (one.server == "tenora")


def test_both_servers_get_the_same_requests(measured, fleet):
    _, seen = fleet
    prompts = {
        name: Counter((request["body"]["model"], *request["body"]["prompt"]) for request in requests)
        for name, requests in seen.items()
    }
    assert prompts["tenora"] <= prompts["vllm"]
    # Each adapter is requested once in each of two rounds; then come the cells.
    cells = sum(len(one.samples["due"]) for one in measured if one.server == "tenora")
    assert prompts["tenora"].total() == 2 * len(NAMES) + cells
    overload = prompts["vllm"] - prompts["tenora"]
    assert {model for model, *_ in overload} == {NAMES[0]}
    assert max(overload.values()) == 1
    assert all(len(request["body"]["prompt"]) >= SHORTEST for request in seen["vllm"])


def test_the_tables_and_the_plot_show_every_cell(measured, tmp_path, capsys):
    grid.show(measured, OPTIONS.cells(), "this machine", tmp_path / "plot.png")
    shown = capsys.readouterr().out
    for words in ("this machine", "n = 1, uniform, 10%", "n = 9, alpha 0.3, 10%", "requests/s", "Tenora / vLLM"):
        assert words in shown
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_ratio_is_that_of_medians():
    cell = Cell(8, 1.0, 70)
    rates = {"tenora": (30.0, 10.0, 20.0), "vllm": (5.0, 10.0, 40.0)}
    rounds = [
        Measured(name, cell, number, 100.0, 70.0, {"requests_per_s": rate}, 0.0, 0, [], {})
        for name, found in rates.items()
        for number, rate in enumerate(found)
    ]
    assert grid.throughput_ratio(grid.summaries(rounds), cell) == 2.0


def test_raw_samples_are_kept_in_columns_of_milliseconds():
    requests = [Arrival(0.0101, 3, [1, 2], 8), Arrival(0.02, 1, [1], 9), Arrival(5, 0, [1], 9)]
    samples = [
        Sample(sent=0.0102, first=0.5, end=1.25, gaps_ms=[2.4, 7.6], tokens=8),
        Sample(sent=0.02, end=0.03, why="HTTP/1.1 503"),
        Sample(why=NOT_SENT),
    ]
    found = json.loads(json.dumps(grid.columns(requests, Run(1.25, 0.1, samples))))
    assert found == {
        "adapter": [3, 1, 0],
        "input": [2, 1, 1],
        "output": [8, 9, 9],
        "due": [10, 20, 5000],
        "sent": [10, 20, None],
        "first": [500, None, None],
        "end": [1250, 30, None],
        "gap": [8, 0, 0],
        "why": {"1": "HTTP/1.1 503"},
        "wall_s": 1.25,
        "generator_cpu_s": 0.1,
    }


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"slots": "many"}, "--slots is 'many'. Write auto or a number."),
        ({"rivals": ("vllm", "s-lora")}, "--rivals has s-lora. Choose from vllm, peft, base."),
        ({"ranks": (8, 1024)}, "--ranks has 1024. Write numbers from 1 to 512."),
        ({"ranks": (0, 8)}, "--ranks has 0. Write numbers from 1 to 512."),
        ({"adapters": (8, 0)}, "--n has 0. Write numbers of 1 or more."),
        ({"loads": (70, -1)}, "has -1. Write numbers above 0."),
    ],
)
def test_options_that_make_no_sense_are_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        Options(**changes)


def test_a_quick_run_is_a_small_one():
    quick = Options(ranks=(8, 64), slots="auto").quick()
    assert (quick.rounds, len(quick.cells()), quick.ranks, quick.slots) == (1, 2, (8, 64), "auto")
