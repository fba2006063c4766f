"""What is left of limits, for those whom they bind."""

from dataclasses import asdict, dataclass
from datetime import datetime

from app.domain.limits.account import Account
from app.domain.limits.limits import Limits
from app.domain.limits.periods import day_left_s, month_left_s


@dataclass(frozen=True, slots=True)
class Left:
    """Where a subject stands with one limit.

    Attributes:
        name: of :class:`app.domain.limits.limits.Limits`; amounts of money are in picos.
        used: with the most that running requests can use; None: the limit is one of each request.
        reset_s: seconds until nothing of it is used; None: that is no matter of time.
    """

    name: str
    allowed: int
    used: int | None
    reset_s: float | None

    @property
    def remaining(self) -> int:
        return max(0, self.allowed - (self.used or 0))


def left(limits: Limits, account: Account, now: float, at: datetime) -> list[Left]:
    """Standing of a subject with each of its limits; the moment as in :class:`app.domain.limits.limiter.Limiter`."""
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
