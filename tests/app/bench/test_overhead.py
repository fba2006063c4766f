"""The order and the bookkeeping of the overhead benchmark; its numbers come from `make bench`."""

import json
import os

import pytest
from rich.console import Console

from app.bench import overhead
from app.bench.client import LoadError
from app.bench.overhead import INPUT_TOKENS, OUTPUT_TOKENS, Size
from app.bench.report import METRICS
from app.bench.servers import Server
from app.demo.train import Demo
from tests.app.bench.completions import KEY, completions_app
from tests.live_server import live_server

SIZE = Size(rounds=2, requests={1: 2, 3: 6})


@pytest.fixture
def demo(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 640}))
    return Demo(tmp_path, {})


@pytest.fixture
def seen():
    """What both servers were sent, in order."""
    return []


@pytest.fixture
def pair(seen):
    app = completions_app(seen, OUTPUT_TOKENS)
    with live_server(app) as first, live_server(app) as second:
        yield [
            Server(name, int(url.rpartition(":")[2]), os.getpid(), {"authorization": KEY})
            for name, url in (("tenora", first), ("vllm", second))
        ]


def test_servers_alternate_and_no_prompt_comes_twice(pair, seen, demo, capsys):
    rounds = overhead._measure(pair, SIZE, demo, Console(quiet=True))
    assert [(r.server, r.concurrency, r.number) for r in rounds] == [
        (server, concurrency, number) for concurrency in (1, 3) for number in (1, 2) for server in ("tenora", "vllm")
    ]
    assert [len(r.samples.ttft_s) for r in rounds] == [2] * 4 + [6] * 4
    assert all(set(r.metrics) == set(METRICS) for r in rounds)
    prompts = [tuple(request["body"]["prompt"]) for request in seen]
    assert all(len(prompt) == INPUT_TOKENS and max(prompt) < 640 for prompt in prompts)
    # A measured prompt goes once to each server, one that warms up to one of them.
    assert len(prompts) - len(set(prompts)) == SIZE.rounds * sum(SIZE.requests.values())

    overhead._print(rounds, SIZE, "this machine")
    shown = capsys.readouterr().out
    for words in ("this machine", "concurrency 1", "concurrency 3", "tenora / vllm", "TTFT p99, ms"):
        assert words in shown


def test_a_server_that_refuses_ends_the_run(pair, demo):
    pair[0].headers.clear()
    with pytest.raises(LoadError, match=r"tenora at concurrency 1: HTTP/1.1 401"):
        overhead._measure(pair, SIZE, demo, Console(quiet=True))


def test_both_sides_get_the_same_engine(demo):
    arguments = overhead._engine_arguments(demo)
    assert arguments[arguments.index("--dtype") + 1] == "float32"
    settings = overhead._settings(SIZE, arguments)
    assert settings["tenora"]["engine_arguments"] == settings["vllm"]["engine_arguments"] == arguments
