"""Refusals that hold for a while, so that nobody has to ask again.

A request is never given back, as tokens and places are: who was refused for the requests of a minute is refused until
the oldest of these have left the window, whatever else happens, unless the limit is changed. So whoever does not wait
costs nobody a lock on the shared accounts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.domain.limits.limiter import LimitBreach, RateLimitStatus, RateStatus, Subject
from app.domain.limits.limits import Limits
from app.services.limits.accounts import Decision

_NAME = "requests_per_minute"
#: By how much two clocks may drift apart in a minute: it is asked again before there is room, never after.
_MARGIN_S = 0.1


@dataclass(frozen=True, slots=True)
class _Refusal:
    exceeded: LimitBreach
    reset_s: float
    asked: float

    @property
    def until(self) -> float:
        return self.asked + (self.exceeded.retry_after_s or 0.0) - _MARGIN_S


class RefusalCache:
    """The last refusal of each subject for the requests of a minute.

    Args:
        monotonic: seconds; of this server, as only durations are compared.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._known: dict[Subject, _Refusal] = {}

    def note(self, decision: Decision, asked: float) -> None:
        """Remember a decision, if it holds for a while.

        Args:
            asked: a moment before it was made.
        """
        exceeded, rate = decision.outcome, decision.standing.requests
        if isinstance(exceeded, LimitBreach) and exceeded.name == _NAME and exceeded.retry_after_s is not None:
            self._known[exceeded.subject] = _Refusal(exceeded, rate.reset_s if rate else 0.0, asked)

    def find(self, limits: Mapping[Subject, Limits]) -> Decision | None:
        """What a request with these limits would be told if it asked now; None: nobody knows."""
        if not self._known:
            return None
        now = self._monotonic()
        for subject, limit in limits.items():
            refusal = self._known.get(subject)
            if refusal and refusal.exceeded.allowed == limit.requests_per_minute and now < refusal.until:
                return _later(refusal, now - refusal.asked)
        return None

    def forget_old(self) -> None:
        """Drop what holds no more."""
        now = self._monotonic()
        self._known = {subject: one for subject, one in self._known.items() if now < one.until}


def _later(refusal: _Refusal, elapsed_s: float) -> Decision:
    old = refusal.exceeded
    wait_s = (old.retry_after_s or 0.0) - elapsed_s
    exceeded = LimitBreach(old.subject, old.name, old.found, old.allowed, wait_s)
    # How many tokens are left is not known here, and an adapter's figures are nobody's to see.
    shown = None if old.subject[0] == "adapter" else RateStatus(old.allowed, 0, max(0.0, refusal.reset_s - elapsed_s))
    return Decision(exceeded, RateLimitStatus(shown, None))
