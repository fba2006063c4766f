"""Prefill chunking by measured step cost, with vLLM's real scheduler, so that streams do not stall."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.vllm.scheduler import prefill_chunking
from app.engine.vllm.scheduler.composition import scheduler_class
from app.engine.vllm.scheduler.prefill_chunking import BoundedSteps, StepCosts, evenly
from tests.support.prefill_machine import PROMPT, STEP_S, TOKEN_S, Machine, engine_config


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Machine that has already served a prompt and a stream."""
    clock = [0.0]
    monkeypatch.setattr(prefill_chunking, "monotonic", lambda: clock[0])
    made = Machine(engine_config(tmp_path), clock)
    made.send(20, output_tokens=5)
    made.step(6)
    made.steps.clear()
    return made


def seconds(step: dict[str, int]) -> float:
    return STEP_S + TOKEN_S * sum(step.values())


def test_a_fresh_engine_takes_prompts_as_vllm_does(tmp_path: Path) -> None:
    fresh = Machine(engine_config(tmp_path), [0.0])
    fresh.send(PROMPT)
    fresh.step()
    assert fresh.steps == [{"0": PROMPT}]


def test_streams_get_a_token_every_50_ms_during_a_prefill(machine: Machine) -> None:
    stream = machine.send(3)
    machine.step(3)
    machine.steps.clear()
    long = machine.send(PROMPT)
    machine.step(60)
    reading = [step for step in machine.steps if step.get(long, 0) > 1]
    assert all(step[stream] == 1 for step in machine.steps)
    assert sum(step[long] for step in reading) == PROMPT
    assert max(map(seconds, reading)) <= 0.05
    assert max(map(seconds, reading)) > 0.045, "no more steps than it needs"


def test_an_adapter_that_a_step_reads_costs_its_prompt_nothing(machine: Machine) -> None:
    """If the adapter's cost counted as token cost, every later prompt would be cut into tiny chunks."""
    machine.send(3)
    machine.step(3)
    for _ in range(20):
        short = machine.send(3, output_tokens=4, adapter=7)
        machine.step(6)
        assert short not in machine.scheduler.requests
    machine.steps.clear()
    long = machine.send(PROMPT, adapter=7)
    machine.step(20)
    reading = [step[long] for step in machine.steps]
    # It would be eleven tokens if the adapter's cost counted as token cost.
    assert min(reading) >= 0.85 * (0.05 - STEP_S - TOKEN_S) / TOKEN_S


def test_several_long_prompts_progress_at_a_quarter_speed(machine: Machine) -> None:
    stream = machine.send(3)
    machine.step(3)
    machine.steps.clear()
    long = [machine.send(PROMPT) for _ in range(8)]
    machine.step()
    (step,) = machine.steps
    assert step[stream] == 1
    assert sum(name in step for name in long) == 4
    assert seconds(step) <= 0.05 + 3 * (0.05 - STEP_S)
    machine.step(500)
    assert all(sum(step.get(name, 0) for step in machine.steps) >= PROMPT for name in long)
    assert all(step[stream] == 1 for step in machine.steps)


def test_streams_come_first_though_a_prompt_came_before_them(machine: Machine) -> None:
    machine.send(PROMPT)
    machine.step()
    streams = [machine.send(3) for _ in range(30)]
    machine.step(200)
    last = machine.steps[-1]
    assert all(last[name] == 1 for name in streams)
    first = next(at for at, step in enumerate(machine.steps) if all(name in step for name in streams))
    assert all(all(step[name] >= 1 for name in streams) for step in machine.steps[first:])


def test_short_prompts_come_whole(machine: Machine) -> None:
    machine.send(3)
    machine.step(3)
    machine.steps.clear()
    short = [machine.send(20) for _ in range(4)]
    machine.step()
    assert [machine.steps[0].get(name) for name in short] == [20, 20, 20, 20]


def test_one_slow_step_does_not_shorten_those_after_it(machine: Machine) -> None:
    machine.send(3)
    machine.step(3)
    long = machine.send(PROMPT)
    machine.step()
    before = machine.steps[-1][long]
    machine.slow = 10
    machine.step()
    machine.slow = 1
    machine.step()
    assert machine.steps[-1][long] >= 0.75 * before


def test_a_slow_first_step_sets_no_price_for_later_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(prefill_chunking, "monotonic", lambda: clock[0])
    fresh = Machine(engine_config(tmp_path), clock)
    fresh.slow = 100
    fresh.send(8, output_tokens=1)
    fresh.step()
    fresh.slow = 1
    for _ in range(6):
        fresh.send(16, output_tokens=8, adapter=7)
        fresh.step(8)
    fresh.send(3)
    fresh.step(3)
    fresh.send(PROMPT, adapter=7)
    fresh.step(10)
    read = max(fresh.steps[-1].values())
    assert read == pytest.approx((0.05 - STEP_S - TOKEN_S) / TOKEN_S, rel=0.25)


def test_a_prompt_has_the_fewest_equal_parts(machine: Machine) -> None:
    machine.send(3)
    machine.step(3)
    most = machine.scheduler.scheduler_config.long_prefill_token_threshold
    machine.steps.clear()
    prompt = machine.send(most + 2)
    machine.step(2)
    parts = [step[prompt] for step in machine.steps]
    assert sum(parts) == most + 2
    assert max(parts) - min(parts) <= 1


@given(st.lists(st.integers(1, 5000), max_size=4), st.integers(1, 5000))
def test_equal_parts_take_no_prompt_more_steps(prompts: list[int], most: int) -> None:
    part = evenly(prompts, most)
    assert 1 <= part <= most
    assert all(-(-tokens // part) == -(-tokens // most) for tokens in prompts)


def test_prompts_are_prefilled_on_a_machine_that_grew_slow(machine: Machine) -> None:
    stream, long = machine.send(3), machine.send(PROMPT)
    machine.slow = 1000
    machine.step(PROMPT + 10)
    assert sum(step.get(long, 0) for step in machine.steps) > PROMPT
    assert machine.steps[-1] == {stream: 1, long: 1}


seen = st.tuples(st.integers(0, 256), st.integers(0, 4096), st.integers(0, 64), st.floats(0, 100))


@given(st.lists(seen, max_size=30), st.integers(0, 256))
def test_whatever_steps_cost_a_prompt_goes_on(found: list[tuple[int, int, int, float]], streams: int) -> None:
    costs = StepCosts()
    for one in found:
        costs.learn(*one)
    allowed = costs.tokens_of_prompt(streams)
    assert allowed is None or allowed >= 1


def test_prompts_that_cost_nothing_have_no_bound() -> None:
    costs = StepCosts()
    costs.learn(1, 0, 0, 0.01)
    costs.learn(1, 100, 0, 0.02)
    for _ in range(5000):
        costs.learn(1, 100, 0, 0.0)
    assert costs.tokens_of_prompt(1) is None


@given(st.floats(1e-4, 1), st.floats(1e-6, 0.1), st.floats(0, 0.1), st.integers(0, 256))
def test_what_is_seen_of_a_steady_machine_is_what_it_costs(
    step_s: float, token_s: float, adapter_s: float, streams: int
) -> None:
    costs = StepCosts()
    for turn in range(900):
        adapters = turn % 3
        for prompt_tokens in (0, 100):
            seconds = step_s + token_s * (streams + prompt_tokens) + adapter_s * adapters
            costs.learn(streams, prompt_tokens, adapters, seconds)
    alone = step_s + token_s * streams
    most = max(0.05, 1.5 * alone if streams else 4 * step_s)
    allowed = costs.tokens_of_prompt(streams)
    assert allowed is not None
    # Rounded, because 15.000000000000002 would be more than 1 away from 14.
    assert allowed == pytest.approx(round((most - alone) / token_s, 9), rel=0.05, abs=1)


def test_who_says_how_prompts_are_cut_gets_it(tmp_path: Path) -> None:
    def is_bounded(**arguments: Any) -> bool:
        return issubclass(scheduler_class(engine_config(tmp_path, **arguments)), BoundedSteps)

    assert is_bounded()
    assert not is_bounded(long_prefill_token_threshold=100)
    assert not is_bounded(enable_chunked_prefill=False)
