"""Simulated engine compared with a token-by-token reference."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lab.simulator.costs import Costs
from app.lab.simulator.engine import Engine
from app.lab.simulator.job import Job
from app.lab.simulator.workload import Arrival

COSTS = Costs(step_s=1.0, sequence_s=0.1, prefill_token_s=0.01, adapter_s=0.05, copy_chunk_s=0.5)


def job(number: int, *, version: int = 0, prompt: int = 10, output: int = 3) -> Job:
    return Job(str(number), Arrival(0.0, 0, version, prompt, output, math.inf, math.inf))


class Log:
    """Simulated engine with a log of its callbacks."""

    def __init__(self) -> None:
        self.finished: list[tuple[str, float]] = []
        self.copied: list[tuple[int, float]] = []
        self.engine = Engine(
            COSTS,
            finished=lambda done: self.finished.append((done.request_id, self.engine.now)),
            copied=lambda version: self.copied.append((version, self.engine.now)),
        )

    def run(self) -> None:
        while not self.engine.idle:
            self.engine.advance(math.inf)
            self.engine.settle()


def test_a_request_costs_a_prefill_and_its_steps() -> None:
    log, only = Log(), job(1, version=7, prompt=10, output=3)
    log.engine.join(only)
    log.run()
    assert only.first_at == pytest.approx(1.0 + 0.1 + 0.1 + 0.05)
    assert log.finished == [("1", pytest.approx(1.25 + 2 * 1.15))]


def test_a_jump_ends_at_the_step_of_an_arrival() -> None:
    log = Log()
    log.engine.join(job(1, output=100))
    log.engine.advance(0.0)
    start = log.engine.now
    log.engine.advance(start + 2.5)
    assert log.engine.now == pytest.approx(start + 3 * 1.1)
    log.engine.advance(0.0)
    assert log.engine.now == pytest.approx(start + 4 * 1.1)


def test_copies_take_pieces_of_the_time_between_steps() -> None:
    log = Log()
    log.engine.join(job(1, output=100))
    log.engine.advance(math.inf)
    begun = log.engine.now
    log.engine.copy(5, 1.2)
    log.engine.copy(6, 0.2)
    for _ in range(3):
        log.engine.advance(begun)
    # Pieces: 0.5 s, 0.5 s, then the last 0.2 s of the first copy together with all of the second.
    assert log.copied == [(5, pytest.approx(begun + 3 * 1.1 + 1.4)), (6, pytest.approx(begun + 3 * 1.1 + 1.4))]


def test_an_engine_without_a_batch_copies_at_once() -> None:
    log = Log()
    log.engine.copy(5, 2.0)
    log.engine.copy(6, 1.0)
    log.engine.copy(7, 9.0)
    log.engine.stop_copy(7)
    log.run()
    assert log.copied == [(5, 2.0), (6, 3.0)]


def test_an_aborted_request_never_finishes() -> None:
    log, first, second, third = Log(), job(1, output=5), job(2, output=50), job(3)
    for each in (first, second):
        log.engine.join(each)
    log.engine.advance(math.inf)
    log.engine.join(third)
    for each in (second, third):
        each.gone = True
        log.engine.abort(each)
    log.run()
    assert [request for request, _ in log.finished] == ["1"]


REQUESTS = st.lists(
    st.tuples(st.floats(0, 30), st.integers(0, 3), st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=12
)


@given(REQUESTS)
def test_going_in_leaps_is_going_token_by_token(requests: list[tuple[float, int, int, int]]) -> None:
    jobs = [
        (at, job(number, version=version, prompt=prompt, output=output))
        for number, (at, version, prompt, output) in enumerate(sorted(requests))
    ]
    log, waiting = Log(), list(jobs)
    while waiting or not log.engine.idle:
        due = waiting[0][0] if waiting else math.inf
        if log.engine.idle:
            log.engine.now = max(log.engine.now, due)
        else:
            log.engine.advance(due)
        while waiting and waiting[0][0] <= log.engine.now:
            log.engine.join(waiting.pop(0)[1])
        log.engine.settle()
    expected = token_by_token(requests)
    assert {request: pytest.approx(ended) for request, ended in log.finished} == expected


def token_by_token(requests: list[tuple[float, int, int, int]]) -> dict[str, float]:
    """Compute the time of each request's last token, step by step."""
    now, waiting, batch, ended = 0.0, list(enumerate(sorted(requests))), {}, {}
    while waiting or batch:
        if not batch:
            now = max(now, waiting[0][1][0])
        prefill = 0
        while waiting and waiting[0][1][0] <= now:
            number, (_, version, prompt, output) = waiting.pop(0)
            batch[number] = [version, output]
            prefill += prompt
        adapters = {version for version, _ in batch.values() if version}
        now += COSTS.step(len(batch), prefill, len(adapters))
        for number, entry in list(batch.items()):
            entry[1] -= 1
            if not entry[1]:
                ended[str(number)] = now
                del batch[number]
    return ended
