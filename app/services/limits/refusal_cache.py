"""Refusal cache: repeat a rate-limit refusal locally while it is certain to hold.

A request stays counted for a minute. Unlike tokens and concurrency slots, it is never returned. A refusal for
``requests_per_minute`` therefore holds until the oldest requests leave the window, unless the limit is changed.
Clients that retry too early then take no lock on the shared accounts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cachetools import TLRUCache

from app.domain.limits.limiter import LimitBreach, RateLimitStatus, RateStatus, Subject
from app.domain.limits.limits import Limits
from app.services.limits.accounts import Decision

_NAME = "requests_per_minute"
_CAPACITY = 10_000
#: Seconds that two clocks may drift apart in a minute. The accounts are asked again too early rather than too late.
_MARGIN_S = 0.1


@dataclass(frozen=True, slots=True)
class _Refusal:
    breach: LimitBreach
    reset_s: float
    asked_at: float

    @property
    def until(self) -> float:
        return self.asked_at + (self.breach.retry_after_s or 0.0) - _MARGIN_S


class RefusalCache:
    """Last refusal of each subject for its requests per minute.

    Args:
        monotonic: this server's monotonic clock in seconds; only durations are compared.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._refusals = TLRUCache[Subject, _Refusal, float](
            _CAPACITY, lambda _subject, refusal, _now: refusal.until, monotonic
        )

    def note(self, decision: Decision, asked_at: float) -> None:
        """Cache a decision if it is a refusal that holds for a while.

        Args:
            asked_at: monotonic time in seconds just before the decision.
        """
        breach, rate = decision.outcome, decision.rate_limits.requests
        if isinstance(breach, LimitBreach) and breach.name == _NAME and breach.retry_after_s is not None:
            self._refusals[breach.subject] = _Refusal(breach, rate.reset_s if rate else 0.0, asked_at)

    def find(self, limits: Mapping[Subject, Limits]) -> Decision | None:
        """Return the cached refusal of a request with these limits, or None."""
        now = self._monotonic()
        for subject, limit in limits.items():
            refusal = self._refusals.get(subject)
            if refusal and refusal.breach.allowed == limit.requests_per_minute:
                return _later(refusal, now - refusal.asked_at)
        return None


def _later(refusal: _Refusal, elapsed_s: float) -> Decision:
    old = refusal.breach
    wait_s = (old.retry_after_s or 0.0) - elapsed_s
    breach = LimitBreach(old.subject, old.name, old.found, old.allowed, wait_s)
    # The remaining tokens are not known here, and an adapter's figures are private.
    shown = None if old.subject[0] == "adapter" else RateStatus(old.allowed, 0, max(0.0, refusal.reset_s - elapsed_s))
    return Decision(breach, RateLimitStatus(shown, None))
