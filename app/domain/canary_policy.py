"""Canary analysis: pure rules that promote or roll back a candidate from counted answers.

A candidate is compared with its baseline over the same window. The test asks one question: does the candidate fail
more often than the baseline, by more than the policy allows? A failure is an error, an empty or non-finite
answer, or a late first token. A first token is late beyond the policy's ratio times the baseline's 95th percentile.

The test runs every half second, so it must stay valid under continuous monitoring. The statistic is a mixture of
likelihood ratios of Bernoulli variables. It is a non-negative supermartingale while the candidate's rate is at most
``p0``. By Ville's inequality it ever reaches ``1 / ALPHA`` with a probability of at most ``ALPHA``. ``p0`` is Wilson's
upper limit of the baseline's rate plus the policy's allowance. Source: Ramdas et al., "Game-theoretic statistics and
safe anytime-valid inference", 2023, sections 2 and 3.

One unlucky error therefore never rolls back a candidate. A candidate that fails every request is rolled back within
about five requests, or a dozen if the baseline has no requests yet.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.domain.errors import InvalidRequest
from app.domain.histogram import LatencyHistogram

#: Bound on the probability that a candidate with the allowed failure rate is ever rolled back.
ALPHA = 1e-4

#: Least number of failures that can break a limit, under any policy.
MIN_FAILURES = 3

# z-score of the one-sided 99% limit.
_Z = 2.326
# Successes credited to the baseline as a prior; without them its upper limit would start at 1.
_PRESUMED_GOOD = 10
# Alternatives of the mixture, as fractions of the way from p0 to 1.
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
        weight: the candidate's share of the traffic in percent, 1 to 100.
        seconds: minimum duration of the stage.
    """

    weight: int
    seconds: int


@dataclass(frozen=True, slots=True)
class Policy:
    """Schedule and limits of a canary.

    Attributes:
        steps: stages with rising weights.
        min_requests: answers that the candidate must have before a step can end, without a time limit.
        max_error_rate, max_empty_rate: allowed excess of the candidate's rate over the baseline's, 0 to 1.
        max_ttft_ratio: highest allowed ratio of the 95th percentiles of time to first token, streams only; None: any.
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
        """Parse the output of ``to_json``."""
        return cls(**{**value, "steps": tuple(Step(**step) for step in value["steps"])})


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of one version in a window.

    Add figures to sum over nodes. Subtract an earlier snapshot to get the later part of a window.

    Attributes:
        requests: answers that ended, successful or not. A recipient of a share counts with its first request only.
            Requests rejected as the caller's fault and requests that the caller cancelled are excluded.
        errors: requests that failed.
        empties: answers without text or tool call, or computed from non-finite numbers.
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
        """Return counts for display, with the 95th percentile of time to first token in seconds."""
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
    """Decision on a canary.

    Attributes:
        code: for a breach ``error_rate``, ``empty_rate`` or ``ttft``; otherwise empty.
        message: explanation in words.
    """

    decision: Decision
    message: str
    code: str = ""


def check_policy(policy: Policy) -> None:
    """Validate a policy.

    Raises:
        InvalidRequest: a value is out of range, or the weights of the steps do not rise.
    """
    steps, ratio = policy.steps, policy.max_ttft_ratio
    if not 1 <= len(steps) <= _MAX_STEPS:
        message = f"policy.steps has {len(steps)} steps; use 1 to {_MAX_STEPS}."
        raise InvalidRequest(message, param="policy.steps")
    for index, step in enumerate(steps):
        where = f"steps[{index}]"
        lowest = steps[index - 1].weight + 1 if index else 1
        words = "1 to 100, and more than in the step before"
        _check(f"{where}.weight", lowest <= step.weight <= 100, step.weight, words)
        in_time = 1 <= step.seconds <= _MAX_STEP_SECONDS
        _check(f"{where}.seconds", in_time, step.seconds, f"1 to {_MAX_STEP_SECONDS} seconds")
    enough = 1 <= policy.min_requests <= _MAX_MIN_REQUESTS
    _check("min_requests", enough, policy.min_requests, f"1 to {_MAX_MIN_REQUESTS}")
    for field_, rate in (("max_error_rate", policy.max_error_rate), ("max_empty_rate", policy.max_empty_rate)):
        _check(field_, 0 <= rate <= 1, rate, "0 to 1")
    if ratio is not None:
        _check("max_ttft_ratio", 1 <= ratio <= _MAX_TTFT_RATIO, ratio, f"1 to {_MAX_TTFT_RATIO:g}, or null")


def _check(where: str, holds: bool, value: object, allowed: str) -> None:
    if not holds:
        raise InvalidRequest(f"policy.{where} is {value}; use {allowed}.", param=f"policy.{where}")


def judge(policy: Policy, step: int, elapsed_s: float, baseline: Figures, candidate: Figures) -> Verdict:
    """Decide on a canary from the figures of both versions in its step ``step`` (from 0)."""
    breach = find_breach(policy, baseline, candidate)
    if breach is not None:
        return breach
    stage = policy.steps[step]
    if elapsed_s < stage.seconds or candidate.requests < policy.min_requests:
        message = (
            f"Step {step + 1} of {len(policy.steps)} is running: {int(elapsed_s)} of {stage.seconds} s, "
            f"{candidate.requests} of {policy.min_requests} requests."
        )
        return Verdict(Decision.WAIT, message)
    if step + 1 < len(policy.steps):
        return Verdict(Decision.ADVANCE, f"Step {step + 1} of {len(policy.steps)} passed.")
    return Verdict(Decision.PROMOTE, f"All {len(policy.steps)} steps passed.")


def find_breach(policy: Policy, baseline: Figures, candidate: Figures) -> Verdict | None:
    """Return the first limit that the candidate breaks with statistical evidence, or None."""
    rates = (
        ("error_rate", "errors", candidate.errors, baseline.errors, policy.max_error_rate),
        ("empty_rate", "empty or non-finite answers", candidate.empties, baseline.empties, policy.max_empty_rate),
    )
    for code, outcome, failures, usual, allowed in rates:
        if exceeds(failures, candidate.requests, usual, baseline.requests, allowed):
            message = (
                f"{failures} of {candidate.requests} requests ended in {outcome}, against {usual} of "
                f"{baseline.requests} on the baseline. max_{code} allows a rate up to {allowed:g} higher."
            )
            return Verdict(Decision.BREACH, message, code)
    return _find_lateness(policy, baseline.ttft, candidate.ttft)


def _find_lateness(policy: Policy, baseline: LatencyHistogram, candidate: LatencyHistogram) -> Verdict | None:
    usual, actual = baseline.percentile(0.95), candidate.percentile(0.95)
    if policy.max_ttft_ratio is None or usual is None or actual is None:
        return None
    if min(baseline.total, candidate.total) < policy.min_requests:
        return None
    limit = usual * policy.max_ttft_ratio
    late = candidate.later_than(limit)
    if not exceeds(late, candidate.total, baseline.later_than(limit), baseline.total, _LATE_SHARE):
        return None
    message = (
        f"The 95th percentile of time to first token is {actual:.3g} s, against {usual:.3g} s on the baseline. "
        f"max_ttft_ratio allows up to {policy.max_ttft_ratio:g} times the baseline."
    )
    return Verdict(Decision.BREACH, message, "ttft")


def exceeds(failures: int, total: int, usual: int, usual_total: int, allowed: float) -> bool:
    """Return whether the candidate's failure rate is significantly above the baseline's.

    Args:
        failures, total: counts of the candidate.
        usual, usual_total: counts of the baseline.
        allowed: allowed excess over the baseline's rate, 0 to 1.
    """
    if failures < MIN_FAILURES:
        return False
    if usual_total and failures / total - usual / usual_total <= allowed:
        return False
    ceiling = _upper_limit(usual, usual_total + _PRESUMED_GOOD) + allowed
    return ceiling < 1 and log_evidence(failures, total, ceiling) >= -math.log(ALPHA)


def log_evidence(failures: int, total: int, ceiling: float) -> float:
    """Natural logarithm of the mixture likelihood ratio against a rate of at most ``ceiling``.

    The mixture is the mean over the alternatives.

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
    """Sum figures."""
    return sum(figures, Figures())
