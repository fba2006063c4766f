"""Output batching: outputs that are held back in the engine's process, and none lost there."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.metrics.stats import PrefillStats, PrefixCacheStats, SchedulerStats

from app.engine.vllm.scheduler.output_batching import ALONG, ENOUGH, MOST_UNTOLD, CoalescedOutputs

Step = list[EngineCoreOutput]


class Told(Scheduler):  # type: ignore[misc]
    """Fake of vLLM's scheduler that reports the outputs given by the test."""

    def __init__(self) -> None:
        self.vllm_config = SimpleNamespace(speculative_config=None)
        self.requests: dict[str, Any] = {}

    def update_from_output(self, told: Any) -> Any:
        return told

    def finish_requests(self, request_ids: list[str]) -> list[Any]:
        return [self.requests.pop(name) for name in request_ids if name in self.requests]


class Coalesced(CoalescedOutputs, Told):
    def ask(self, *names: str, kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY, **params: Any) -> None:
        for name in names:
            asked = SamplingParams(output_kind=kind, **params)
            self.requests[name] = SimpleNamespace(request_id=name, sampling_params=asked)

    def step(self, *outputs: EngineCoreOutput, stats: SchedulerStats | None = None) -> Step | None:
        """Run a step and return the outputs sent to the server; None if nothing is sent."""
        told = self.update_from_output({0: EngineCoreOutputs(outputs=list(outputs), scheduler_stats=stats)})
        return told[0].outputs if told else None


def tokens(name: str, *token_ids: int, **more: Any) -> EngineCoreOutput:
    return EngineCoreOutput(name, list(token_ids), **more)


def said(step: Step | None) -> dict[str, list[int]]:
    return {output.request_id: output.new_token_ids for output in step or []}


def test_tokens_of_a_whole_answer_wait_until_there_are_some() -> None:
    core = Coalesced()
    core.ask("whole")
    steps = [core.step(tokens("whole", number)) for number in range(MOST_UNTOLD * 2)]
    assert [number for number, step in enumerate(steps) if step is not None] == [MOST_UNTOLD - 1, MOST_UNTOLD * 2 - 1]
    assert said(steps[MOST_UNTOLD - 1]) == {"whole": list(range(MOST_UNTOLD))}
    assert said(steps[-1]) == {"whole": list(range(MOST_UNTOLD, MOST_UNTOLD * 2))}


def test_the_end_brings_what_has_waited() -> None:
    core = Coalesced()
    core.ask("whole")
    core.step(tokens("whole", 1))
    step = core.step(tokens("whole", 2, finish_reason=FinishReason.LENGTH))
    assert said(step) == {"whole": [1, 2]}
    assert step is not None
    assert step[0].finish_reason is FinishReason.LENGTH
    core.requests.clear()
    assert core.step() == []


@pytest.mark.parametrize(
    "params", [{"kind": RequestOutputKind.DELTA}, {"kind": RequestOutputKind.CUMULATIVE}, {"stop": ["end"]}]
)
def test_somebody_waits_for_each_token_of_these(params: dict[str, Any]) -> None:
    core = Coalesced()
    core.ask("now", **params)
    assert said(core.step(tokens("now", 1))) == {"now": [1]}


@pytest.mark.parametrize(
    "news",
    [
        {"prefill_stats": PrefillStats()},
        {"events": [EngineCoreEvent.new_event(EngineCoreEventType.PREEMPTED)]},
        {"num_nans_in_logits": 3},
        {"new_logprobs": ()},
        {"new_sampling_mask": ()},
        {"routed_experts": ()},
    ],
)
def test_other_outputs_flush_the_batch_before_them(news: dict[str, Any]) -> None:
    core = Coalesced()
    core.ask("whole")
    assert core.step(tokens("whole", 1)) is None
    step = core.step(tokens("whole", 2, **news))
    assert said(step) == {"whole": [1, 2]}
    assert step is not None
    assert all(getattr(step[0], name) == value for name, value in news.items())


def test_first_tokens_are_told_before_all_others() -> None:
    core = Coalesced()
    core.ask("old", "older", "new", "newer", kind=RequestOutputKind.DELTA)
    first = {"prefill_stats": PrefillStats()}
    step = core.step(tokens("old", 1), tokens("new", 2, **first), tokens("older", 3), tokens("newer", 4, **first))
    assert list(said(step)) == ["new", "newer", "old", "older"]


def test_a_sent_message_takes_along_ready_outputs() -> None:
    core = Coalesced()
    core.ask("old", "young")
    core.ask("stream", kind=RequestOutputKind.DELTA)
    for number in range(ENOUGH - 1):
        assert core.step(tokens("old", number)) is None
    step = core.step(tokens("old", 99), tokens("young", 0), tokens("stream", 0))
    assert said(step) == {"stream": [0], "old": [*range(ENOUGH - 1), 99]}
    assert said(core.step(tokens("young", 1, finish_reason=FinishReason.STOP))) == {"young": [0, 1]}


def test_longest_waiting_prompts_join_within_a_streams_gap() -> None:
    core = Coalesced()
    names = [f"r{number}" for number in range(ALONG * 3)]
    core.ask(*names)
    core.ask("stream", kind=RequestOutputKind.DELTA)
    for number in range(ENOUGH):
        core.step(*(tokens(name, number) for name in names))
    for group in (names[:ALONG], names[ALONG : ALONG * 2], names[ALONG * 2 :]):
        assert list(said(core.step(tokens("stream", 0)))) == ["stream", *group]
    assert list(said(core.step(tokens("stream", 0)))) == ["stream"]


@pytest.mark.parametrize(
    "stats", [SchedulerStats(prefix_cache_stats=PrefixCacheStats(requests=1, queries=9)), SchedulerStats(perf_stats=1)]
)
def test_a_steps_statistics_that_would_be_missed_are_told(stats: SchedulerStats) -> None:
    core = Coalesced()
    core.ask("whole")
    assert core.step(tokens("whole", 1), stats=SchedulerStats(num_running_reqs=1)) is None
    assert core.step(tokens("whole", 2), stats=stats) == []
    assert said(core.step(tokens("whole", 3, finish_reason=FinishReason.STOP))) == {"whole": [1, 2, 3]}


def test_a_step_without_outputs_says_how_things_are() -> None:
    core = Coalesced()
    core.ask("whole")
    core.step(tokens("whole", 1))
    assert core.step(stats=SchedulerStats(num_running_reqs=0)) == []


def test_an_abandoned_request_keeps_only_its_token_count() -> None:
    core = Coalesced()
    core.ask("gone", "other")
    core.step(tokens("gone", 1), tokens("other", 1))
    core.step(tokens("gone", 2))
    core.finish_requests(["gone", "unknown"])
    core.ask("gone")  # another request with the same name
    step = core.step(tokens("gone", 7, finish_reason=FinishReason.STOP), tokens("other", 2))
    assert said(step) == {"gone": [7]}
    assert core.take_untold(["gone", "other", "unknown"]) == 2
    assert core.take_untold(["gone"]) == 0


def test_what_nobody_asks_about_is_forgotten() -> None:
    core = Coalesced()
    names = [f"r{number}" for number in range(10_001)]
    core.ask(*names)
    for name in names:
        core.step(tokens(name, 1))
    core.finish_requests(names)
    assert [core.take_untold([name]) for name in (names[0], names[1], names[-1])] == [0, 1, 1]


def test_speculation_is_told_of_by_step() -> None:
    core = Coalesced()
    core.vllm_config = SimpleNamespace(speculative_config=SimpleNamespace())
    core.ask("whole")
    assert said(core.step(tokens("whole", 1, 2))) == {"whole": [1, 2]}


@pytest.mark.parametrize("seed", range(20))
def test_every_token_arrives_once_in_order_and_soon(seed: int) -> None:
    chance, core = random.Random(seed), Coalesced()
    left: dict[str, int] = {}
    made: dict[str, list[int]] = {}
    arrived: dict[str, list[int]] = {}
    for number in range(400):
        if len(left) < 8:
            name = f"r{number}"
            kind = chance.choice([RequestOutputKind.FINAL_ONLY] * 3 + [RequestOutputKind.DELTA])
            core.ask(name, kind=kind)
            left[name], made[name], arrived[name] = chance.randint(1, 60), [], []
        step = []
        for name in chance.sample(sorted(left), chance.randint(0, len(left))):
            made[name].append(number)
            left[name] -= 1
            step.append(tokens(name, number, finish_reason=None if left[name] else FinishReason.LENGTH))
        for output in core.step(*step) or []:
            arrived[output.request_id] += output.new_token_ids
        for name in [name for name in left if not left[name]]:
            assert arrived[name] == made[name]
            del left[name], core.requests[name]
        for name in left:
            assert arrived[name] == made[name][: len(arrived[name])]
            assert len(made[name]) - len(arrived[name]) < MOST_UNTOLD
