"""Request order and bookkeeping of the overhead benchmark; its numbers come from `make bench`."""

import os

import pytest
from rich.console import Console

from app.lab.bench import overhead
from app.lab.bench.overhead import INPUT_TOKENS, OUTPUT_TOKENS, Size
from app.lab.bench.report import METRICS
from app.lab.bench.servers import Server
from app.lab.bench.wire import LoadError
from tests.support.completions import KEY, completions_app
from tests.support.live_server import live_server

VOCABULARY = 640
SIZE = Size(rounds=2, requests={1: 2, 3: 6})


@pytest.fixture
def seen():
    """Requests to both servers, in order."""
    return []


@pytest.fixture
def pair(seen):
    app = completions_app(seen, OUTPUT_TOKENS)
    with live_server(app) as first, live_server(app) as second:
        yield [
            Server(name, int(url.rpartition(":")[2]), os.getpid(), {"authorization": KEY})
            for name, url in (("tenora", first), ("vllm", second))
        ]


def test_servers_alternate_and_no_prompt_comes_twice(pair, seen, capsys):
    rounds = overhead.measure(pair, SIZE, VOCABULARY, Console(quiet=True))
    assert [(r.server, r.concurrency, r.streamed, r.number) for r in rounds] == [
        (server, concurrency, streamed, number)
        for concurrency in (1, 3)
        for streamed in (True, False)
        for number in (1, 2)
        for server in ("tenora", "vllm")
    ]
    assert [len(r.samples.ttft_s) for r in rounds] == [2] * 8 + [6] * 8
    gaps = {name for name in METRICS if name.startswith("inter_token")}
    assert all(set(r.metrics) == set(METRICS) - (set() if r.streamed else gaps) for r in rounds)
    prompts = [tuple(request["body"]["prompt"]) for request in seen]
    assert all(len(prompt) == INPUT_TOKENS and max(prompt) < VOCABULARY for prompt in prompts)
    # A measured prompt goes to each server once, a warm-up prompt to one server only.
    assert len(prompts) - len(set(prompts)) == 2 * SIZE.rounds * sum(SIZE.requests.values())

    overhead.show(rounds, SIZE, "this machine")
    shown = capsys.readouterr().out
    for words in ("this machine", "concurrency 1, streamed", "concurrency 3, not streamed", "tenora / vllm"):
        assert words in shown


def test_a_server_that_refuses_ends_the_run(pair):
    pair[0].headers.clear()
    with pytest.raises(LoadError, match=r"tenora at concurrency 1: HTTP/1.1 401"):
        overhead.measure(pair, SIZE, VOCABULARY, Console(quiet=True))
