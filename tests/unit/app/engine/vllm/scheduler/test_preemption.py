"""Preemption by priority and resumption, with vLLM's real scheduler."""

from pathlib import Path

import pytest
from vllm.v1.request import RequestStatus

from app.engine.vllm.scheduler import preemption
from app.engine.vllm.scheduler.preemption import MOST_ASIDE_S, PrioritySteps, priority
from app.engine.vllm.scheduler.prefill_chunking import BoundedSteps
from tests.support.prefill_machine import BLOCK, Machine, engine_config

PLACES = 4
EARLY, LATE = 10, 20


class Steps(PrioritySteps, BoundedSteps):
    """Scheduler as in app/engine/vllm/scheduler/composition.py, without the parts that need an engine process."""


@pytest.fixture(params=["who leaves keeps its blocks", "who leaves gives them back"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    """Machine with four places; a preempted request keeps its blocks (CPU) or frees them (GPU)."""
    made = small(tmp_path)
    made.scheduler._holds = request.param == "who leaves keeps its blocks"
    return made


def small(folder: Path, blocks: int = 4096) -> Machine:
    config = engine_config(folder, max_num_seqs=PLACES, scheduling_policy="priority")
    # vLLM reserves one block.
    return Machine(config, [0.0], Steps, blocks + 1)


def full(machine: Machine, priority: int, output_tokens: int = 10_000) -> list[str]:
    """Fill every place with a request that has generated three tokens."""
    names = [machine.send(3, output_tokens, priority=priority) for _ in range(PLACES)]
    machine.step(3)
    return names


def test_the_last_is_preempted_in_the_next_step(machine: Machine) -> None:
    late = full(machine, LATE)
    early = machine.send(3, priority=EARLY)
    machine.step()
    assert set(machine.steps[-1]) == {*late[:-1], early}


def test_it_goes_on_where_it_was_before_who_came_later(machine: Machine) -> None:
    late = full(machine, LATE, output_tokens=20)
    machine.send(3, 5, priority=EARLY)
    later = machine.send(3, 5, priority=LATE)
    aside = machine.scheduler.requests[late[-1]]
    made = list(aside.output_token_ids)
    machine.step(6)
    assert machine.steps[-1][late[-1]] == (3 + len(made) if aside.num_preemptions else 1)
    machine.step(40)
    assert len(made) == 3
    assert aside.num_output_tokens == 20
    assert aside.num_preemptions == (not machine.scheduler._holds)
    assert machine.scheduler.requests == {}
    first = {name: next(at for at, step in enumerate(machine.steps) if name in step) for name in (*late, later)}
    assert first[later] > max(first[name] for name in late)


def test_preemptions_match_arrivals_with_earlier_tags(machine: Machine) -> None:
    late = full(machine, LATE)
    early = [machine.send(3, priority=EARLY) for _ in range(3)]
    machine.send(3, priority=LATE + 1)
    machine.step()
    assert set(machine.steps[-1]) == {late[0], *early}
    earlier = [machine.send(3, priority=EARLY - 1) for _ in range(2)]
    machine.step()
    assert set(machine.steps[-1]) == {*early[:2], *earlier}


def test_nobody_leaves_while_there_are_places(machine: Machine) -> None:
    late = [machine.send(3, priority=LATE) for _ in range(PLACES - 1)]
    machine.step(3)
    early = machine.send(3, priority=EARLY)
    machine.step()
    assert set(machine.steps[-1]) == {*late, early}


def test_a_prompt_whose_logprobs_are_told_is_not_read_twice(machine: Machine) -> None:
    late = [machine.send(3, priority=LATE, prompt_logprobs=1 if number == 3 else None) for number in range(PLACES)]
    machine.step(3)
    early = machine.send(3, priority=EARLY)
    machine.step(2)
    assert early not in machine.steps[-1]
    machine.send(3, priority=EARLY + 1)
    machine.send(3, priority=EARLY + 2)
    machine.step()
    assert late[3] in machine.steps[-1]
    assert early in machine.steps[-1]


def test_a_cancelled_waiter_leaves_nobody_preempted(machine: Machine) -> None:
    late = full(machine, LATE)
    for _ in range(5):
        early = machine.send(3, priority=EARLY)
        machine.scheduler.finish_requests(early, RequestStatus.FINISHED_ABORTED)
        machine.step()
        assert set(machine.steps[-1]) == set(late)
    assert machine.scheduler.requests[late[-1]].num_output_tokens == 8
    assert machine.scheduler.requests[late[-1]].num_preemptions == 0


def test_who_gives_up_while_it_is_aside_is_gone(machine: Machine) -> None:
    late = full(machine, LATE)
    early = machine.send(3, output_tokens=3, priority=EARLY)
    machine.step()
    machine.scheduler.finish_requests(late[-1], RequestStatus.FINISHED_ABORTED)
    machine.step(5)
    assert set(machine.scheduler.requests) == set(machine.steps[-1]) == set(late[:-1])
    assert early not in machine.scheduler.requests


def test_when_all_others_end_at_once_it_goes_on(machine: Machine) -> None:
    late = full(machine, LATE)
    early = [machine.send(3, output_tokens=3, priority=EARLY) for _ in range(PLACES)]
    machine.step(3)
    assert not set(early) & set(machine.scheduler.requests)
    assert machine.scheduler.has_requests()
    machine.step()
    assert set(machine.steps[-1]) == set(late)


def test_nobody_stands_still_for_long(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream resumes after two seconds and is not preempted again, even under a flood of higher priority."""
    now = [0.0]
    monkeypatch.setattr(preemption, "monotonic", lambda: now[0])
    late = full(machine, LATE)
    for _ in range(2 * PLACES):
        machine.send(3, priority=EARLY)
    machine.step()
    assert not set(late) & set(machine.steps[-1])
    now[0] += MOST_ASIDE_S
    machine.step(2)
    assert set(machine.steps[-1]) == set(late)
    for _ in range(2 * PLACES):
        machine.send(3, priority=EARLY)
    machine.step(10)
    assert set(machine.steps[-1]) == set(late)


def preemptions(machine: Machine) -> dict[str, int]:
    return {name: found.num_preemptions for name, found in machine.scheduler.requests.items() if found.num_preemptions}


def test_blocks_are_kept_while_running_sequences_have_enough(tmp_path: Path) -> None:
    machine = small(tmp_path, blocks=PLACES + 2)
    late = full(machine, LATE, output_tokens=BLOCK - 3)
    early = [machine.send(BLOCK - 4, 4, priority=EARLY) for _ in range(2)]
    machine.step()
    assert set(machine.steps[-1]) == {*late[:-2], *early}
    machine.step(20)
    assert preemptions(machine) == machine.scheduler.requests == {}
    assert [sum(step.get(name, 0) for step in machine.steps) for name in late] == [BLOCK - 1] * PLACES


def test_the_last_gives_back_what_a_prompt_before_it_needs(tmp_path: Path) -> None:
    machine = small(tmp_path, blocks=PLACES + 2)
    late = full(machine, LATE, output_tokens=10)
    early = [machine.send(2 * BLOCK - 4, 4, priority=EARLY), machine.send(3, 4, priority=EARLY)]
    machine.step()
    assert set(machine.steps[-1]) == {*late[:-2], *early}
    assert preemptions(machine) == {late[-1]: 1}
    aside = [machine.scheduler.requests[name] for name in late]
    machine.step(20)
    assert machine.scheduler.requests == {}
    assert [one.num_output_tokens for one in aside] == [10] * PLACES


def test_the_last_gives_back_what_a_stream_before_it_grows_into(tmp_path: Path) -> None:
    machine = small(tmp_path, blocks=PLACES + 1)
    late = full(machine, LATE, output_tokens=10)
    early = machine.send(BLOCK - 3, 30, priority=EARLY)
    machine.step(3)
    assert preemptions(machine) == {}
    machine.step(2)
    assert preemptions(machine) == {late[-1]: 1}
    machine.step(40)
    assert machine.scheduler.requests == {}
    assert sum(step.get(early, 0) for step in machine.steps) == BLOCK - 3 + 29


@pytest.mark.parametrize(
    ("start_tag", "expected"), [(0.0, 0), (0.01, 10), (41.9, 42_905), (1e300, 2**62), (float("inf"), 2**62)]
)
def test_any_counter_is_a_priority(start_tag: float, expected: int) -> None:
    assert priority(start_tag) == expected
