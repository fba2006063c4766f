"""Remaining allowance under each limit, for display."""

from dataclasses import asdict, dataclass
from datetime import datetime

from app.domain.limits.account import Account
from app.domain.limits.limits import Limits
from app.domain.limits.periods import day_left_s, month_left_s


@dataclass(frozen=True, slots=True)
class Left:
    """Status of a subject under one limit.

    Attributes:
        name: name of the limit in :class:`app.domain.limits.limits.Limits`; amounts of money are in picos.
        used: usage, with the upper bounds of requests in flight; None for a limit per request.
        reset_s: seconds until the usage is zero; None if it does not depend on time.
    """

    name: str
    allowed: int
    used: int | None
    reset_s: float | None

    @property
    def remaining(self) -> int:
        return max(0, self.allowed - (self.used or 0))


def left(limits: Limits, account: Account, now: float, at: datetime) -> list[Left]:
    """Return the status of a subject under each of its limits.

    Args:
        limits: limits of the subject.
        account: usage counters of the subject.
        now, at: the current time, as in :class:`app.domain.limits.limiter.Limiter`.
    """
    account.advance(now, at)
    day_s, month_s = day_left_s(at), month_left_s(at)
    used: dict[str, tuple[int | None, float | None]] = {
        "requests_per_minute": (account.requests.total, account.requests.empty_in(now)),
        "tokens_per_minute": (account.tokens.total, account.tokens.empty_in(now)),
        "concurrent_requests": (account.running, None),
        "tokens_per_request": (None, None),
        "tokens_per_day": (account.tokens_of_day, day_s),
        "tokens_per_month": (account.tokens_of_month, month_s),
        "cost_per_day": (account.cost_of_day, day_s),
        "cost_per_month": (account.cost_of_month, month_s),
    }
    return [Left(name, allowed, *used[name]) for name, allowed in asdict(limits).items() if allowed is not None]
