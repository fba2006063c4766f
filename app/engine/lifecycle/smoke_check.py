"""The smoke check: a few short prompts on a version and on the base, compared number by number.

Whether an adapter has an effect is asked of the logprobs of all tokens, the prompts' own included, as those are
given the same tokens on both sides. On one machine and one batch the same weights give the same numbers to the last
bit, so an adapter without effect is usually found by equality. But a kernel may round differently in a batch of
another size, and then the base differs from itself too. So a small difference is judged against that one: base and
version are asked again, side by side, and the version has an effect only if each of its answers is further from all
of the base's than twice what the base's are from each other. Measured on a CPU with 12 other requests running: base
and an adapter of zeros 0 in float32 and bfloat16; an adapter scaled to a ten-thousandth 0.0006 and 0.036.

A long prompt is asked together with the short ones. It only has to be answered with finite numbers: some faults of
kernels, and adapters that overflow, show in long sequences only. The logprobs of its own tokens are not asked for.
"""

import asyncio
import itertools
import math
import secrets
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adapters.identity import VersionKey
from app.domain.errors import EngineUnavailable
from app.engine.port import Endpoint, EngineRequest, SmokeResult

#: Token ids that every vocabulary has and that are special in none of the supported bases; no text, as what it
#: would mean is the tokenizer's.
PROMPTS = tuple(tuple(3 + (17 * row * place + 5 * place + row) % 90 for place in range(10)) for row in range(1, 5))
_NEW_TOKENS = 4
_BODY: dict[str, Any] = {
    "prompt": [list(prompt) for prompt in PROMPTS],
    "max_tokens": _NEW_TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    # The logprob of each token of the answer, none of its alternatives.
    "logprobs": 0,
    "return_tokens_as_token_ids": True,
}

#: The long prompt has a quarter of the context, 2,048 tokens at most.
_LONG_PART, _LONGEST = 4, 2048

#: A difference of logprobs (natural logarithm) that no rounding makes: bfloat16 logits of 32 are 0.25 apart.
_CLEAR = 1.0
#: How often base and version are asked side by side when the difference is smaller.
_ROUNDS = 3
_BASE_ANSWERS = 8

Ask = Callable[[EngineRequest], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Scored:
    """What was answered to the prompts: for each of them tokens and their logprobs, the first one's None."""

    tokens: tuple[tuple[str, ...], ...]
    logprobs: tuple[tuple[float | None, ...], ...]
    finite: bool

    @classmethod
    def of(cls, answer: dict[str, Any], *, finite: bool, prompts: bool = True) -> "Scored":
        """Read a completion.

        Args:
            finite: whether the engine found no NaN itself.
            prompts: whether the prompts' tokens were asked for.
        """
        scored = [choice["logprobs"] for choice in answer["choices"]]
        logprobs = tuple(tuple(one["token_logprobs"]) for one in scored)
        # The engine knows no logprob of a prompt's first token, and all others must be numbers.
        known = [value for row in logprobs for value in row[int(prompts) :]]
        numbers = all(isinstance(value, float) and math.isfinite(value) for value in known)
        return cls(tuple(tuple(one["tokens"]) for one in scored), logprobs, finite and numbers)


def distance(one: Scored, other: Scored) -> float:
    """The largest difference of logprobs at tokens that both were given; 0 only if all is the same."""
    largest = 0.0
    for tokens, others, scores, other_scores in zip(
        one.tokens, other.tokens, one.logprobs, other.logprobs, strict=True
    ):
        for token, other_token, score, other_score in zip(tokens, others, scores, other_scores, strict=True):
            if score is not None and other_score is not None:
                largest = max(largest, abs(score - other_score))
            if token != other_token:
                # From here on they were given different tokens.
                largest = max(largest, sys.float_info.epsilon)
                break
    return largest


def differs(version: Sequence[Scored], base: Sequence[Scored]) -> bool:
    """Whether the version's answers are too far from the base's for the base's own differences to explain."""
    noise = max((_nearest(answer, [*base[:at], *base[at + 1 :]]) for at, answer in enumerate(base)), default=0.0)
    return min(_nearest(answer, base) for answer in version) > 2 * noise


def _nearest(answer: Scored, others: Sequence[Scored]) -> float:
    return min((distance(answer, other) for other in others), default=0.0)


class SmokeCheck:
    """Smoke checks on one life of an engine; the base's answers are kept for the next check.

    Args:
        ask: runs one request, through the slots like any other.
        was_finite: whether the engine found no NaN in a request that has ended.
        context: tokens of the longest sequence that the engine takes.
        prompts: whether the prompts' own tokens are asked for too, which an engine that serves the head cannot answer.
    """

    def __init__(
        self, ask: Ask, was_finite: Callable[[str], bool], *, base_name: str, context: int, prompts: bool = True
    ) -> None:
        self._body, self._prompts = _BODY | {"echo": prompts}, prompts
        self._long = _BODY | {"prompt": long_prompt(context), "echo": False}
        self._ask_engine, self._was_finite, self._base_name = ask, was_finite, base_name
        self._base: deque[Scored] = deque(maxlen=_BASE_ANSWERS)
        self._numbers = itertools.count(1)

    async def run(self, key: VersionKey) -> SmokeResult:
        """Check one version.

        Raises:
            AdapterLoadFailed, EngineUnavailable
            adapters.errors.StorageError: the version's bytes could not be had.
        """
        answers = [await self._ask_both(key)]
        if not self._base:
            self._base.append(await self._ask_base())
        for _ in range(_ROUNDS):
            if not answers[-1].finite:
                return SmokeResult(finite=False, has_effect=True)
            difference = _nearest(answers[-1], list(self._base))
            if difference == 0 or difference >= _CLEAR:
                return SmokeResult(finite=True, has_effect=difference > 0)
            answers.append(await self._side_by_side(key))
        return SmokeResult(finite=answers[-1].finite, has_effect=differs(answers[1:], list(self._base)))

    async def _ask_both(self, key: VersionKey) -> Scored:
        """Ask the short prompts and the long one in the same steps. The answer is that of the short ones."""
        long = asyncio.create_task(self._answer(key, self._long, prompts=False))
        try:
            answer = await self._ask(key)
            return replace(answer, finite=answer.finite and (await long).finite)
        finally:
            await _ended(long)

    async def _side_by_side(self, key: VersionKey) -> Scored:
        """Ask base and version at the same moment, so that they share their batches."""
        base = asyncio.create_task(self._ask_base())
        try:
            answer = await self._ask(key)
            self._base.append(await base)
        finally:
            await _ended(base)
        return answer

    async def _ask_base(self) -> Scored:
        answer = await self._ask(None)
        if not answer.finite:
            raise EngineUnavailable("the base model's own answers are not finite", retry_after=60)
        return answer

    async def _ask(self, key: VersionKey | None) -> Scored:
        return await self._answer(key, self._body, prompts=self._prompts)

    async def _answer(self, key: VersionKey | None, body: Mapping[str, Any], *, prompts: bool) -> Scored:
        # A salt of its own each time: what is computed here is nobody's, and nothing computed before is used.
        request_id = f"smoke-{next(self._numbers)}-{secrets.token_hex(4)}"
        request = EngineRequest(request_id, Endpoint.COMPLETIONS, dict(body), self._base_name, key, request_id)
        answer = await self._ask_engine(request)
        return Scored.of(answer, finite=self._was_finite(request_id), prompts=prompts)


def long_prompt(context: int) -> list[int]:
    """Token ids of the long prompt, from the same range as those of the short ones."""
    return [3 + (7 * place + place // 90) % 90 for place in range(min(_LONGEST, context // _LONG_PART))]


async def _ended(work: asyncio.Task[Scored]) -> None:
    """Cancel a task and wait for its end. Its result or error is dropped."""
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
