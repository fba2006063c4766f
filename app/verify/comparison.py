"""Verdict on an engine's answers from a reference's logprobs. Pure functions without I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

#: Bound for logprob differences (natural logarithm) in float32. Another summation order explains about 1e-4.
FLOAT32_BOUND = 1e-3
#: Bound in a narrower dtype, as a multiple of the reference's difference between that dtype and float32.
NARROW_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Greedy answer of the engine: token ids of prompt and answer, and the logprob of each answer token."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """Logprobs of the reference for an answer, computed with teacher forcing on the engine's tokens.

    Attributes:
        logprobs: logprobs of the engine's tokens.
        best: most likely token at each position.
        best_logprobs: logprobs of the most likely tokens.
    """

    logprobs: tuple[float, ...]
    best: tuple[int, ...]
    best_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison of one answer.

    Attributes:
        prompt_tokens: number of prompt tokens.
        largest, mean: differences of logprobs; infinite if the engine's logprob is NaN.
        first_other: index of the first token that differs from the reference's greedy one, except ties within the
            bound; None if all tokens agree.
    """

    prompt_tokens: int
    largest: float
    mean: float
    first_other: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Comparison of all answers.

    Attributes:
        bound_largest, bound_mean: bounds of the differences.
        reasons: reasons why the answers are wrong; empty if they are right.
    """

    prompts: tuple[Compared, ...]
    bound_largest: float
    bound_mean: float
    reasons: tuple[str, ...] = field(default=())

    @property
    def largest(self) -> float:
        return max(prompt.largest for prompt in self.prompts)

    @property
    def mean(self) -> float:
        return sum(prompt.mean for prompt in self.prompts) / len(self.prompts)


def judge(answers: Sequence[Answer], exact: Sequence[Scores], narrow: Sequence[Scores] | None = None) -> Verdict:
    """Compare answers with a reference.

    Args:
        answers: at least one answer, each with at least one token.
        exact: scores of the reference in float32.
        narrow: scores of the reference in the engine's dtype; None if that is float32.
    """
    if narrow is None:
        bound_largest = bound_mean = FLOAT32_BOUND
    else:
        noise = [
            [abs(a - b) for a, b in zip(rough.logprobs, fine.logprobs, strict=True)]
            for rough, fine in zip(narrow, exact, strict=True)
        ]
        bound_largest = NARROW_FACTOR * max(map(max, noise))
        bound_mean = NARROW_FACTOR * sum(sum(row) / len(row) for row in noise) / len(noise)
    compared = tuple(_compare(answer, scores, bound_largest) for answer, scores in zip(answers, exact, strict=True))
    verdict = Verdict(compared, bound_largest, bound_mean)
    return Verdict(compared, bound_largest, bound_mean, tuple(_reasons(verdict)))


def _compare(answer: Answer, scores: Scores, bound: float) -> Compared:
    differences = [
        abs(actual - expected) if isfinite(actual) else inf
        for actual, expected in zip(answer.logprobs, scores.logprobs, strict=True)
    ]
    others = (
        place
        for place, (token, best) in enumerate(zip(answer.tokens, scores.best, strict=True))
        # If two tokens differ by no more than the bound, either counts as greedy.
        if token != best and scores.best_logprobs[place] - scores.logprobs[place] > bound
    )
    return Compared(len(answer.prompt), max(differences), sum(differences) / len(differences), next(others, None))


def _reasons(verdict: Verdict) -> list[str]:
    reasons = []
    if not verdict.largest <= verdict.bound_largest:
        reasons.append(
            f"The largest difference of logprobs is {verdict.largest:.3g}. The bound is {verdict.bound_largest:.3g}."
        )
    if not verdict.mean <= verdict.bound_mean:
        reasons.append(f"The mean difference of logprobs is {verdict.mean:.3g}. The bound is {verdict.bound_mean:.3g}.")
    reasons.extend(
        f"Token {prompt.first_other + 1} after a prompt of {prompt.prompt_tokens} tokens differs from the reference."
        for prompt in verdict.prompts
        if prompt.first_other is not None
    )
    return reasons
