"""Benchmark of a gateway: CPU time of streamed tokens."""

import pytest

from app.lab.bench.client import Samples
from app.lab.bench.gateway_overhead import token_cpu_ms
from app.lab.bench.overhead import Round


def measured(server: str, cpu_s: float, *, streamed: bool, number: int = 1) -> Round:
    return Round(server, 16, streamed, number, {}, cpu_s, Samples(1.0, [], [], 1000))


def test_a_streamed_token_costs_what_a_whole_answer_does_not() -> None:
    rounds = [
        *(measured("replica", cpu_s, streamed=True, number=number) for number, cpu_s in enumerate((0.5, 0.4, 0.9))),
        measured("replica", 0.2, streamed=False),
        measured("in process", 0.3, streamed=True),
        measured("in process", 0.2, streamed=False),
    ]
    assert token_cpu_ms(rounds, "replica", 16) == pytest.approx(0.3)
    assert token_cpu_ms(rounds, "in process", 16) == pytest.approx(0.1)
