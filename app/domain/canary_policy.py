"""When a canary goes on and when it goes back: pure rules over counted answers.

A candidate is judged against the version that it would replace, over the same window. The question is always the
same: does it fail more often than the baseline by more than the policy allows? Failing is an error, an empty or
non-finite answer, or a first token later than the policy's ratio times the baseline's 95th percentile.

The answer is asked for every half second, so it has to hold however often one looks. It is a mixture of likelihood
ratios of Bernoulli variables, a non-negative supermartingale while the candidate's rate is at most ``p0``: by
Ville's inequality it ever reaches ``1 / ALPHA`` with a probability of at most ``ALPHA`` (Ramdas et al., "Game-theoretic
statistics and safe anytime-valid inference", 2023, sections 2 and 3). ``p0`` is Wilson's upper limit of the
baseline's rate plus the policy's allowance. So one unlucky error never moves traffic, and a candidate that answers
nothing does so within about five requests, a dozen if the baseline has none to compare with.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.domain.errors import InvalidRequest
from app.domain.histogram import LatencyHistogram

#: The probability of ever turning back a candidate that fails at the allowed rate.
ALPHA = 1e-4

#: Fewer failures than these are bad luck, whatever the policy says.
MIN_FAILURES = 3

# One-sided 99% limit.
_Z = 2.326
# Good answers that a version in service is credited with, as without any its upper limit would be 1.
_PRESUMED_GOOD = 10
# Where between p0 and 1 the alternatives lie.
_ALTERNATIVES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
_LATE_SHARE = 0.05

_MAX_STEPS = 20
_MAX_STEP_SECONDS = 30 * 86400
_MAX_MIN_REQUESTS = 1_000_000
_MAX_TTFT_RATIO = 100.0


@dataclass(frozen=True, slots=True)
class Step:
    """A stage of a canary.

    Attributes:
        weight: the candidate's share in percent, 1 to 100.
        seconds: how long the stage lasts at least.
    """

    weight: int
    seconds: int


@dataclass(frozen=True, slots=True)
class Policy:
    """How a canary proceeds and what it may not do.

    Attributes:
        steps: with rising weights.
        min_requests: answers of the candidate without which a step does not end, however long it takes.
        max_error_rate, max_empty_rate: how much higher than the baseline's the candidate's rate may be, 0 to 1.
        max_ttft_ratio: the highest allowed ratio of 95th percentiles of time to first token, streams only; None: any.
    """

    steps: tuple[Step, ...] = (Step(5, 300), Step(25, 300), Step(100, 300))
    min_requests: int = 20
    max_error_rate: float = 0.02
    max_empty_rate: float = 0.02
    max_ttft_ratio: float | None = 1.5

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": [{"weight": step.weight, "seconds": step.seconds} for step in self.steps],
            "min_requests": self.min_requests,
            "max_error_rate": self.max_error_rate,
            "max_empty_rate": self.max_empty_rate,
            "max_ttft_ratio": self.max_ttft_ratio,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Policy":
        """What ``to_json`` made."""
        return cls(**{**value, "steps": tuple(Step(**step) for step in value["steps"])})


@dataclass(frozen=True, slots=True)
class Figures:
    """What a version did in a window. They add up over nodes, and subtract to a later part of the window.

    Attributes:
        requests: answers that ended, well or not; of a recipient of a share only its first. Not among them are
            requests refused for the caller's fault and those that the caller broke off.
        errors: of them, those that failed.
        empties: of them, those without text or tool call, or computed from numbers that were not finite.
        ttft: times to first token of streamed answers.
    """

    requests: int = 0
    errors: int = 0
    empties: int = 0
    ttft: LatencyHistogram = field(default_factory=LatencyHistogram)

    def __add__(self, other: "Figures") -> "Figures":
        return Figures(
            self.requests + other.requests,
            self.errors + other.errors,
            self.empties + other.empties,
            self.ttft + other.ttft,
        )

    def __sub__(self, earlier: "Figures") -> "Figures":
        return Figures(
            self.requests - earlier.requests,
            self.errors - earlier.errors,
            self.empties - earlier.empties,
            self.ttft - earlier.ttft,
        )

    def summary(self) -> dict[str, Any]:
        """For people: counts, and the 95th percentile of time to first token in seconds."""
        return {
            "requests": self.requests,
            "errors": self.errors,
            "empties": self.empties,
            "streamed": self.ttft.total,
            "ttft_p95_s": self.ttft.percentile(0.95),
        }


class Decision(StrEnum):
    WAIT = "wait"
    ADVANCE = "advance"
    PROMOTE = "promote"
    BREACH = "breach"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a canary now.

    Attributes:
        code: of a breach: ``error_rate``, ``empty_rate`` or ``ttft``; else empty.
        message: why, in words.
    """

    decision: Decision
    message: str
    code: str = ""


def check_policy(policy: Policy) -> None:
    """Refuse a policy that makes no sense.

    Raises:
        InvalidRequest
    """
    steps, ratio = policy.steps, policy.max_ttft_ratio
    _check("steps", 1 <= len(steps) <= _MAX_STEPS, len(steps), f"1 to {_MAX_STEPS} steps")
    for index, step in enumerate(steps):
        where = f"steps[{index}]"
        lowest = steps[index - 1].weight + 1 if index else 1
        words = "1 to 100, each step above the one before"
        _check(f"{where}.weight", lowest <= step.weight <= 100, step.weight, words)
        in_time = 1 <= step.seconds <= _MAX_STEP_SECONDS
        _check(f"{where}.seconds", in_time, step.seconds, f"1 to {_MAX_STEP_SECONDS} seconds")
    enough = 1 <= policy.min_requests <= _MAX_MIN_REQUESTS
    _check("min_requests", enough, policy.min_requests, f"1 to {_MAX_MIN_REQUESTS}")
    for field_, rate in (("max_error_rate", policy.max_error_rate), ("max_empty_rate", policy.max_empty_rate)):
        _check(field_, 0 <= rate <= 1, rate, "0 to 1")
    if ratio is not None:
        _check("max_ttft_ratio", 1 <= ratio <= _MAX_TTFT_RATIO, ratio, f"1 to {_MAX_TTFT_RATIO:g}, or null")


def _check(where: str, holds: bool, found: object, allowed: str) -> None:
    if not holds:
        raise InvalidRequest(f"policy.{where}: found {found}, allowed {allowed}", param=f"policy.{where}")


def judge(policy: Policy, step: int, elapsed_s: float, baseline: Figures, candidate: Figures) -> Verdict:
    """Decide on a canary in its step ``step`` (from 0), from what both versions did in that step so far."""
    breach = find_breach(policy, baseline, candidate)
    if breach is not None:
        return breach
    stage = policy.steps[step]
    if elapsed_s < stage.seconds or candidate.requests < policy.min_requests:
        message = (
            f"step {step + 1} of {len(policy.steps)}: {int(elapsed_s)} of {stage.seconds} s, "
            f"{candidate.requests} of {policy.min_requests} requests"
        )
        return Verdict(Decision.WAIT, message)
    if step + 1 < len(policy.steps):
        return Verdict(Decision.ADVANCE, f"step {step + 1} of {len(policy.steps)} held")
    return Verdict(Decision.PROMOTE, f"all {len(policy.steps)} steps held")


def find_breach(policy: Policy, baseline: Figures, candidate: Figures) -> Verdict | None:
    """The first of the policy's limits that the candidate is known to break, if it breaks one."""
    rates = (
        ("error_rate", "errors", candidate.errors, baseline.errors, policy.max_error_rate),
        ("empty_rate", "empty or non-finite answers", candidate.empties, baseline.empties, policy.max_empty_rate),
    )
    for code, what, failures, usual, allowed in rates:
        if exceeds(failures, candidate.requests, usual, baseline.requests, allowed):
            message = (
                f"{failures} of {candidate.requests} requests ended in {what}, {usual} of {baseline.requests} "
                f"on the baseline; allowed {allowed:g} more"
            )
            return Verdict(Decision.BREACH, message, code)
    return _find_lateness(policy, baseline.ttft, candidate.ttft)


def _find_lateness(policy: Policy, baseline: LatencyHistogram, candidate: LatencyHistogram) -> Verdict | None:
    usual, found = baseline.percentile(0.95), candidate.percentile(0.95)
    if policy.max_ttft_ratio is None or usual is None or found is None:
        return None
    if min(baseline.total, candidate.total) < policy.min_requests:
        return None
    limit = usual * policy.max_ttft_ratio
    late = candidate.later_than(limit)
    if not exceeds(late, candidate.total, baseline.later_than(limit), baseline.total, _LATE_SHARE):
        return None
    message = (
        f"the 95th percentile of time to first token is {found:.3g} s, {usual:.3g} s on the baseline; "
        f"allowed {policy.max_ttft_ratio:g} times that"
    )
    return Verdict(Decision.BREACH, message, "ttft")


def exceeds(failures: int, total: int, usual: int, usual_total: int, allowed: float) -> bool:
    """Whether ``failures`` of ``total`` are evidence of a rate above that of ``usual`` of ``usual_total``.

    Args:
        allowed: how much above it may be, 0 to 1.
    """
    if failures < MIN_FAILURES:
        return False
    if usual_total and failures / total - usual / usual_total <= allowed:
        return False
    ceiling = _upper_limit(usual, usual_total + _PRESUMED_GOOD) + allowed
    return ceiling < 1 and log_evidence(failures, total, ceiling) >= -math.log(ALPHA)


def log_evidence(failures: int, total: int, ceiling: float) -> float:
    """Natural logarithm of the likelihood ratio, averaged over the alternatives, against a rate of at most ``ceiling``.

    Args:
        ceiling: ``p0``, above 0 and below 1.
    """
    ratios = [_log_ratio(failures, total - failures, ceiling, part) for part in _ALTERNATIVES]
    highest = max(ratios)
    return highest + math.log(sum(math.exp(ratio - highest) for ratio in ratios) / len(ratios))


def _log_ratio(failures: int, successes: int, ceiling: float, part: float) -> float:
    alternative = ceiling + (1 - ceiling) * part
    ratio = failures * math.log(alternative / ceiling)
    if successes:
        # (1 - alternative) / (1 - ceiling), which is 0 where the alternative is 1.
        ratio += successes * math.log(1 - part) if part < 1 else -math.inf
    return ratio


def _upper_limit(failures: int, total: int) -> float:
    """Wilson's upper confidence limit of a rate (E. B. Wilson, JASA 22, 1927)."""
    rate, spread = failures / total, _Z**2 / total
    root = _Z * math.sqrt(rate * (1 - rate) / total + spread / (4 * total))
    return (rate + spread / 2 + root) / (1 + spread)


def total_of(figures: Sequence[Figures]) -> Figures:
    """Their sum."""
    return sum(figures, Figures())
