"""What a running engine said beside what a reference computes: numbers in, a verdict out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

#: How far logprobs (natural logarithm) of float32 may be apart: sums of a few thousand products in another order differ
#: by some ten-thousandths.
FLOAT32_BOUND = 1e-3
#: In a narrower type, so many times what the reference itself differs from float32 in that type: another kernel rounds
#: elsewhere, a few times in each layer, and no worse.
NARROW_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine's greedy answer to a prompt, with the logprob of each of its tokens."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """What a reference makes of an answer, token by token, each after those that the engine gave before it.

    Attributes:
        logprobs: of the engine's tokens.
        best: the most likely tokens.
        best_logprobs: of these.
    """

    logprobs: tuple[float, ...]
    best: tuple[int, ...]
    best_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """One prompt's answer against the reference.

    Attributes:
        prompt_tokens: of the prompt.
        largest, mean: differences of logprobs; infinite if one is not a number.
        first_other: where the reference would have gone on with another token, by more than the bound; or None.
    """

    prompt_tokens: int
    largest: float
    mean: float
    first_other: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """All prompts together.

    Attributes:
        bound_largest, bound_mean: what was allowed.
        reasons: why the engine is wrong; empty if it is right.
    """

    prompts: tuple[Compared, ...]
    bound_largest: float
    bound_mean: float
    reasons: tuple[str, ...] = field(default=())

    @property
    def largest(self) -> float:
        return max(one.largest for one in self.prompts)

    @property
    def mean(self) -> float:
        return sum(one.mean for one in self.prompts) / len(self.prompts)


def judge(answers: Sequence[Answer], exact: Sequence[Scores], narrow: Sequence[Scores] | None = None) -> Verdict:
    """Compare answers with a reference in float32.

    Args:
        answers: at least one, of one token or more each.
        exact: the reference in float32.
        narrow: the same in the engine's type, if that is another.
    """
    if narrow is None:
        bound_largest = bound_mean = FLOAT32_BOUND
    else:
        noise = [
            [abs(one - other) for one, other in zip(rough.logprobs, fine.logprobs, strict=True)]
            for rough, fine in zip(narrow, exact, strict=True)
        ]
        bound_largest = NARROW_FACTOR * max(map(max, noise))
        bound_mean = NARROW_FACTOR * sum(sum(row) / len(row) for row in noise) / len(noise)
    compared = tuple(_compare(answer, scores, bound_largest) for answer, scores in zip(answers, exact, strict=True))
    verdict = Verdict(compared, bound_largest, bound_mean)
    return Verdict(compared, bound_largest, bound_mean, tuple(_reasons(verdict)))


def _compare(answer: Answer, scores: Scores, bound: float) -> Compared:
    differences = [
        abs(one - other) if isfinite(one) else inf for one, other in zip(answer.logprobs, scores.logprobs, strict=True)
    ]
    others = (
        place
        for place, (token, best) in enumerate(zip(answer.tokens, scores.best, strict=True))
        # Of two tokens that are equally likely within the bound, either is greedy.
        if token != best and scores.best_logprobs[place] - scores.logprobs[place] > bound
    )
    return Compared(len(answer.prompt), max(differences), sum(differences) / len(differences), next(others, None))


def _reasons(verdict: Verdict) -> list[str]:
    reasons = []
    if not verdict.largest <= verdict.bound_largest:
        reasons.append(
            f"largest difference of logprobs: found {verdict.largest:.3g}, allowed {verdict.bound_largest:.3g}"
        )
    if not verdict.mean <= verdict.bound_mean:
        reasons.append(f"mean difference of logprobs: found {verdict.mean:.3g}, allowed {verdict.bound_mean:.3g}")
    reasons.extend(
        f"prompt of {one.prompt_tokens} tokens: token {one.first_other + 1} of the answer is another"
        for one in verdict.prompts
        if one.first_other is not None
    )
    return reasons
