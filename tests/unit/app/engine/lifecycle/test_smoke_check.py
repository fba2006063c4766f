"""Smoke check: criteria for finite numbers and for an effect. The real engine is checked in tests/e2e."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.identity import VersionKey
from app.domain.errors import AdapterLoadFailed, EngineUnavailable
from app.engine.lifecycle.smoke_check import PROMPTS, Scored, SmokeCheck, differs, distance, long_prompt
from app.engine.port import EngineRequest, Outcome, SmokeResult

KEY = VersionKey(7, "a" * 64, "b" * 64, 1, 1)

CONTEXT = 400

#: Difference of each logprob of an answer from the base's first answer.
Offset = float


def is_long(request: EngineRequest) -> bool:
    return request.body["prompt"] == long_prompt(CONTEXT)


def completion(offset: Offset, *, last: str = "token_id:5") -> dict[str, Any]:
    logprobs = {"tokens": ["token_id:3", "token_id:4", last], "token_logprobs": [None, -1.0, -2.0 + offset]}
    return {"choices": [{"logprobs": logprobs} for _ in PROMPTS]}


def scored(offset: Offset) -> Scored:
    return Scored.of(completion(offset), finite=True)


@dataclass
class Call:
    """Call that ``ask`` answers."""

    request: EngineRequest
    ask: Callable[[EngineRequest], Awaitable[dict[str, Any]]]
    finite: bool = True

    @property
    def outcome(self) -> Outcome:
        return Outcome(finite=self.finite)

    async def answer(self) -> dict[str, Any]:
        return await self.ask(self.request)


class Engine:
    """Fake engine that answers with planned offsets for base and version; the last offset repeats."""

    def __init__(self, base: Sequence[Offset], version: Sequence[Offset]) -> None:
        self.plans = {False: list(base), True: list(version)}
        #: Requests with short prompts, and with long ones.
        self.asked: list[EngineRequest] = []
        self.long: list[EngineRequest] = []
        self.not_finite: Callable[[EngineRequest], bool] = lambda _request: False

    async def ask(self, request: EngineRequest) -> dict[str, Any]:
        if is_long(request):
            self.long.append(request)
            return {"choices": [{"logprobs": {"tokens": ["token_id:3"], "token_logprobs": [-1.0]}}]}
        self.asked.append(request)
        await asyncio.sleep(0)
        plan = self.plans[request.adapter is not None]
        return completion(plan.pop(0) if len(plan) > 1 else plan[0])

    def begin(self, request: EngineRequest) -> Call:
        return Call(request, self.ask, finite=not self.not_finite(request))

    @property
    def check(self) -> SmokeCheck:
        return SmokeCheck(self.begin, base_name="base", context=CONTEXT)


def test_the_prompts_fit_every_base() -> None:
    assert len(set(PROMPTS)) == len(PROMPTS)
    assert all(3 <= token < 96 for prompt in PROMPTS for token in prompt)
    # The smallest context that the settings allow is 16 tokens.
    assert {len(prompt) for prompt in PROMPTS} == {10}


async def test_a_clear_difference_takes_one_look_at_each() -> None:
    engine = Engine(base=[0.0], version=[3.0])
    assert await engine.check.run(KEY) == SmokeResult(finite=True, has_effect=True)
    assert [request.adapter for request in engine.asked] == [KEY, None]


async def test_the_bases_answers_are_kept_and_salts_are_not() -> None:
    engine = Engine(base=[0.0], version=[3.0])
    check = engine.check
    await check.run(KEY)
    await check.run(KEY)
    assert [request.adapter for request in engine.asked] == [KEY, None, KEY]
    assert len({request.cache_salt for request in engine.asked}) == 3
    assert len({request.request_id for request in engine.asked}) == 3


async def test_equality_is_no_effect() -> None:
    engine = Engine(base=[0.0], version=[0.0])
    assert await engine.check.run(KEY) == SmokeResult(finite=True, has_effect=False)
    assert len(engine.asked) == 2


async def test_equality_in_a_later_round_is_no_effect() -> None:
    """In the first round, base and version ran in batches of different sizes."""
    engine = Engine(base=[0.0, 0.0, 0.25], version=[0.25])
    assert await engine.check.run(KEY) == SmokeResult(finite=True, has_effect=False)


async def test_a_small_difference_that_stays_is_an_effect() -> None:
    engine = Engine(base=[0.0], version=[0.01])
    assert await engine.check.run(KEY) == SmokeResult(finite=True, has_effect=True)
    assert len(engine.asked) == 2 + 2 * 3


async def test_a_difference_as_the_bases_own_is_no_effect() -> None:
    engine = Engine(base=[0.0, 0.02, 0.04, 0.06], version=[0.01, 0.03, 0.05, 0.07])
    assert await engine.check.run(KEY) == SmokeResult(finite=True, has_effect=False)


async def test_an_effect_is_seen_over_the_bases_own_differences() -> None:
    engine = Engine(base=[0.0, 0.02, 0.04, 0.06], version=[0.5, 0.52, 0.51, 0.53])
    assert await engine.check.run(KEY) == SmokeResult(finite=True, has_effect=True)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_a_logprob_that_is_no_number_is_not_finite(number: float) -> None:
    assert (await Engine(base=[0.0], version=[number]).check.run(KEY)).finite is False


async def test_nan_that_only_the_engine_saw_is_not_finite() -> None:
    engine = Engine(base=[0.0], version=[3.0])
    engine.not_finite = lambda request: request.adapter is not None
    assert (await engine.check.run(KEY)).finite is False


async def test_nan_behind_the_long_prompt_is_not_finite() -> None:
    engine = Engine(base=[0.0], version=[3.0])
    engine.not_finite = is_long
    assert await engine.check.run(KEY) == SmokeResult(finite=False, has_effect=True)
    assert [request.adapter for request in engine.long] == [KEY]


@pytest.mark.parametrize(("context", "tokens"), [(16, 4), (2048, 512), (8192, 2048), (131_072, 2048)])
def test_the_long_prompt_leaves_room_for_its_answer(context: int, tokens: int) -> None:
    assert len(long_prompt(context)) == tokens
    assert all(3 <= token < 96 for token in long_prompt(context))


async def test_nan_in_a_later_round_is_not_finite() -> None:
    engine = Engine(base=[0.0], version=[0.01, 0.01, math.nan])
    assert (await engine.check.run(KEY)).finite is False


async def test_a_base_that_is_not_finite_is_no_versions_fault() -> None:
    with pytest.raises(EngineUnavailable, match="base model"):
        await Engine(base=[math.nan], version=[3.0]).check.run(KEY)


async def test_a_version_that_cannot_be_loaded_is_the_callers_to_hear() -> None:
    async def ask(request: EngineRequest) -> dict[str, Any]:
        raise AdapterLoadFailed("broken", version_id=KEY.version_id)

    with pytest.raises(AdapterLoadFailed):
        await SmokeCheck(lambda request: Call(request, ask), base_name="base", context=CONTEXT).run(KEY)


async def test_nothing_goes_on_once_one_of_the_two_has_failed() -> None:
    engine = Engine(base=[0.0], version=[0.01])

    async def ask(request: EngineRequest) -> dict[str, Any]:
        if len(engine.asked) < 2:
            return await engine.ask(request)
        if request.adapter:
            raise EngineUnavailable("the engine died")
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    with pytest.raises(EngineUnavailable):
        await SmokeCheck(lambda request: Call(request, ask), base_name="base", context=CONTEXT).run(KEY)
    assert len(asyncio.all_tasks()) == 1


def test_tokens_that_part_are_never_the_same() -> None:
    one, other = completion(0.0), completion(0.0, last="token_id:6")
    assert distance(Scored.of(one, finite=True), Scored.of(other, finite=True)) > 0


def test_what_follows_other_tokens_is_not_compared() -> None:
    tokens = ["token_id:1", "token_id:2", "token_id:3"]
    one = {"choices": [{"logprobs": {"tokens": tokens, "token_logprobs": [None, -1.0, -2.0]}}]}
    changed = [tokens[0], "token_id:9", tokens[2]]
    other = {"choices": [{"logprobs": {"tokens": changed, "token_logprobs": [None, -1.5, -9.0]}}]}
    assert distance(Scored.of(one, finite=True), Scored.of(other, finite=True)) == 0.5


OFFSETS = st.lists(st.floats(-1, 1), min_size=1, max_size=6)


@given(OFFSETS, OFFSETS)
def test_a_version_that_equals_the_base_has_no_effect(base: list[float], picks: list[float]) -> None:
    version = [base[int(abs(pick) * (len(base) - 1))] for pick in picks]
    assert differs([scored(offset) for offset in version], [scored(offset) for offset in base]) is False


@given(OFFSETS, OFFSETS)
def test_a_version_beyond_all_of_the_bases_noise_has_an_effect(base: list[float], version: list[float]) -> None:
    far = [offset + 10 for offset in version]
    assert differs([scored(offset) for offset in far], [scored(offset) for offset in base]) is True


def _answers(first: float | None) -> dict[str, Any]:
    logprobs = {"tokens": ["token_id:4", "token_id:5"], "token_logprobs": [first, -2.0]}
    return {"choices": [{"logprobs": logprobs} for _ in PROMPTS]}


@pytest.mark.parametrize(("first", "finite"), [(-1.0, True), (None, False)])
async def test_an_engine_with_lora_head_gives_no_prompt_logprobs(first: float | None, finite: bool) -> None:
    asked: list[EngineRequest] = []

    async def ask(request: EngineRequest) -> dict[str, Any]:
        asked.append(request)
        return _answers(-5.0 if request.adapter is None else first)

    result = await SmokeCheck(lambda request: Call(request, ask), base_name="base", context=CONTEXT, prompts=False).run(
        KEY
    )
    assert result == SmokeResult(finite=finite, has_effect=True)
    assert [request.body["echo"] for request in asked if not is_long(request)] == [False, False]
