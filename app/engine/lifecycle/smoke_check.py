"""Smoke check: compare a version's logprobs for a few short prompts with the base's.

The logprobs of all tokens decide whether an adapter has an effect. They include the prompts' own tokens, which are the
same on both sides. On one machine and in one batch, the same weights give the same numbers to the last bit. So
equality usually reveals an adapter without effect.

A kernel may round differently in a batch of another size, and then the base differs from itself too. A small
difference is therefore compared with the base's noise: base and version are asked again, side by side. The version has
an effect only if each of its answers is far from all of the base's answers. Far means more than twice the distance
between the base's answers. See docs/decisions/0014-smoke-check-by-logprobs.md.

A long prompt runs together with the short ones, and must only give finite numbers. Some kernel faults, and adapters
that overflow, show in long sequences only. The logprobs of the long prompt itself are not requested.
"""

import asyncio
import itertools
import math
import secrets
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adapters.identity import VersionKey
from app.domain.errors import EngineUnavailable
from app.engine.port import Endpoint, EngineCall, EngineRequest, SmokeResult

#: Prompts of token ids that every vocabulary has and that are special in none of the supported bases. They are not
#: text, whose token ids depend on the tokenizer.
PROMPTS = tuple(tuple(3 + (17 * row * place + 5 * place + row) % 90 for place in range(10)) for row in range(1, 5))
_NEW_TOKENS = 4
_BODY: dict[str, Any] = {
    "prompt": [list(prompt) for prompt in PROMPTS],
    "max_tokens": _NEW_TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    # The logprob of each token of the answer, without alternatives.
    "logprobs": 0,
    "return_tokens_as_token_ids": True,
}

#: Length of the long prompt: a quarter of the context, at most 2,048 tokens.
_LONG_PART, _LONGEST = 4, 2048

#: Difference of logprobs (natural logarithm) beyond any rounding. bfloat16 logits of 32 are 0.25 apart.
_CLEAR = 1.0
#: Rounds in which base and version are asked side by side, if the difference is smaller.
_ROUNDS = 3
_BASE_ANSWERS = 8


@dataclass(frozen=True, slots=True)
class Scored:
    """Answer to the prompts: tokens and logprobs for each prompt. The first token's logprob is None."""

    tokens: tuple[tuple[str, ...], ...]
    logprobs: tuple[tuple[float | None, ...], ...]
    finite: bool

    @classmethod
    def of(cls, answer: dict[str, Any], *, finite: bool, prompts: bool = True) -> "Scored":
        """Read a completion.

        Args:
            finite: whether the engine itself found no NaN.
            prompts: whether the prompts' tokens were requested.
        """
        scored = [choice["logprobs"] for choice in answer["choices"]]
        logprobs = tuple(tuple(choice["token_logprobs"]) for choice in scored)
        # A prompt's first token has no logprob. All others must be numbers.
        values = [value for row in logprobs for value in row[int(prompts) :]]
        numbers = all(isinstance(value, float) and math.isfinite(value) for value in values)
        return cls(tuple(tuple(choice["tokens"]) for choice in scored), logprobs, finite and numbers)


def distance(answer: Scored, other: Scored) -> float:
    """Largest difference of logprobs at tokens with equal prefixes; 0 only if both answers are equal."""
    largest = 0.0
    for tokens, others, scores, other_scores in zip(
        answer.tokens, other.tokens, answer.logprobs, other.logprobs, strict=True
    ):
        for token, other_token, score, other_score in zip(tokens, others, scores, other_scores, strict=True):
            if score is not None and other_score is not None:
                largest = max(largest, abs(score - other_score))
            if token != other_token:
                # From here on their prefixes differ.
                largest = max(largest, sys.float_info.epsilon)
                break
    return largest


def differs(version: Sequence[Scored], base: Sequence[Scored]) -> bool:
    """Return whether the version's distance to the base's answers exceeds the base's own noise."""
    noise = max((_nearest(answer, [*base[:at], *base[at + 1 :]]) for at, answer in enumerate(base)), default=0.0)
    return min(_nearest(answer, base) for answer in version) > 2 * noise


def _nearest(answer: Scored, others: Sequence[Scored]) -> float:
    return min((distance(answer, other) for other in others), default=0.0)


class SmokeCheck:
    """Smoke checks in one engine session. The base's answers are kept for the next check.

    Args:
        begin: function that creates the call of one request. It runs through admission and slots like any other.
        context: longest sequence that the engine takes, in tokens.
        prompts: whether logprobs of the prompts' own tokens are requested. An engine that serves the head refuses them.
    """

    def __init__(
        self, begin: Callable[[EngineRequest], EngineCall], *, base_name: str, context: int, prompts: bool = True
    ) -> None:
        self._body, self._prompts = _BODY | {"echo": prompts}, prompts
        self._long = _BODY | {"prompt": long_prompt(context), "echo": False}
        self._begin, self._base_name = begin, base_name
        self._base: deque[Scored] = deque(maxlen=_BASE_ANSWERS)
        self._numbers = itertools.count(1)

    async def run(self, key: VersionKey) -> SmokeResult:
        """Check one version.

        Raises:
            AdapterLoadFailed, EngineUnavailable
            adapters.errors.StorageError: the version's bytes are not available.
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
        """Run the short prompts and the long one in the same steps. Return the answer to the short ones."""
        long = asyncio.create_task(self._answer(key, self._long, prompts=False))
        try:
            answer = await self._ask(key)
            return replace(answer, finite=answer.finite and (await long).finite)
        finally:
            await _ended(long)

    async def _side_by_side(self, key: VersionKey) -> Scored:
        """Ask base and version at the same time, so that they share batches."""
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
            raise EngineUnavailable(
                "The base model's answers are not finite numbers, so the adapter cannot be tested. Try again later.",
                retry_after=60,
            )
        return answer

    async def _ask(self, key: VersionKey | None) -> Scored:
        return await self._answer(key, self._body, prompts=self._prompts)

    async def _answer(self, key: VersionKey | None, body: Mapping[str, Any], *, prompts: bool) -> Scored:
        # A new salt each time separates this request from everything in the prefix cache.
        request_id = f"smoke-{next(self._numbers)}-{secrets.token_hex(4)}"
        request = EngineRequest(request_id, Endpoint.COMPLETIONS, dict(body), self._base_name, key, request_id)
        call = self._begin(request)
        answer = await call.answer()
        if not isinstance(answer, dict):
            raise TypeError("The smoke check does not stream.")
        return Scored.of(answer, finite=call.outcome.finite, prompts=prompts)


def long_prompt(context: int) -> list[int]:
    """Token ids of the long prompt, from the same range as those of the short ones."""
    return [3 + (7 * place + place // 90) % 90 for place in range(min(_LONGEST, context // _LONG_PART))]


async def _ended(work: asyncio.Task[Scored]) -> None:
    """Cancel a task and wait for its end. Discard its result or error."""
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
