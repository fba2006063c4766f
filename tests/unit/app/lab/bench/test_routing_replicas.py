"""Benchmark of routing on real replicas: requests, figures, table and plot, and the rules that it compares."""

import json

import pytest

from app.cli.other_routing import RULES
from app.lab.bench import routing_replicas
from app.lab.bench.open_loop import Sample
from app.lab.bench.routing import Measured
from app.lab.bench.routing_replicas import Options, figures_of, gain_of, requests_of, show
from app.lab.bench.servers import Server
from app.lab.bench.wire import LoadError
from app.scheduling.replica_report import ReplicaReport

SERVER = Server("tenora", 1, 1, headers={"authorization": "Bearer x"})


def test_all_rules_get_the_same_requests_in_closed_loops() -> None:
    options = Options(requests=300, filling=20, clients=4)
    first, again = (requests_of(options, "zipf", 1, SERVER, 500) for _ in range(2))
    assert first == again != requests_of(options, "zipf", 2, SERVER, 500)
    assert [request.after for request in first] == [None] * 4 + list(range(316))
    uniform = requests_of(options, "uniform", 1, SERVER, 500)
    popular = routing_replicas.adapter_name(0)
    counts = [sum(request.model == popular for request in requests) for requests in (first, uniform)]
    assert counts[0] > 2 * counts[1]


def test_figures_count_the_requests_that_waited_for_no_load() -> None:
    samples = [Sample(sent=1.0, first=1.5, end=2.0, load_ms=load) for load in (None, None, None, 12.0)]
    figures = figures_of(samples)
    assert (figures["warm"], figures["ttft_p50_s"], figures["requests_per_s"]) == (0.75, 0.5, 4.0)
    with pytest.raises(LoadError, match=r"1 requests failed\. The first one: 503"):
        figures_of([*samples, Sample(why="503")])


def test_the_gain_is_the_median_of_the_rounds(tmp_path, capsys) -> None:
    shares = {"tenora": (0.4, 0.6, 0.5), "random": (0.2, 0.2, 0.4), "power of two": (0.3, 0.3, 0.3)}
    measured = [
        Measured(
            "replicas", "zipf", policy, number, {"warm": share, "ttft_p50_s": 1, "ttft_p99_s": 2, "requests_per_s": 3}
        )
        for policy, rounds in shares.items()
        for number, share in enumerate(rounds)
    ]
    assert gain_of(measured, "zipf") == pytest.approx(2.0)
    assert gain_of(measured[:3], "zipf") is None
    show(measured, "a machine", tmp_path / "routing.png")
    assert "requests without a load 2.00" in capsys.readouterr().out
    assert (tmp_path / "routing.png").stat().st_size > 5_000
    json.dumps([one.figures for one in measured])


@pytest.mark.parametrize("name", RULES)
def test_other_rules_ignore_what_a_replica_holds(name: str) -> None:
    router = RULES[name]()
    router.report(ReplicaReport("0", 4, resident=frozenset({"a"})), 0.0)
    router.report(ReplicaReport("1", 4), 0.0)
    routes = [router.route("a", now=0.0) for _ in range(200)]
    counts = [sum(route.node_id == node for route in routes) for node in "01"]
    assert min(counts) > 60
    for route in routes:
        router.finish(route)
    assert router.load("0") == router.load("1") == 0
