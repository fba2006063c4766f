"""Usage counters of one subject, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from app.domain.limits.minute_window import MinuteWindow
from app.domain.limits.periods import day_of, month_of

_WINDOWS = ("requests", "tokens")


@dataclass(frozen=True, slots=True)
class PeriodTotals:
    """Totals of a day and of its month; costs in picos."""

    tokens_of_day: int = 0
    tokens_of_month: int = 0
    cost_of_day: int = 0
    cost_of_month: int = 0


@dataclass(slots=True)
class Account:
    """Usage counters of one subject.

    Attributes:
        running: requests in flight.
        day, month: current periods, to which the totals of tokens and costs (in picos) belong.
    """

    requests: MinuteWindow = field(default_factory=MinuteWindow)
    tokens: MinuteWindow = field(default_factory=MinuteWindow)
    running: int = 0
    day: int = 0
    tokens_of_day: int = 0
    month: int = 0
    tokens_of_month: int = 0
    cost_of_day: int = 0
    cost_of_month: int = 0

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Account":
        """Parse the output of :attr:`stored`."""
        windows = {name: MinuteWindow.of(stored[name]) for name in _WINDOWS}
        return cls(**{**stored, **windows})

    @property
    def stored(self) -> dict[str, Any]:
        """JSON representation."""
        numbers = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _WINDOWS}
        return numbers | {name: getattr(self, name).steps for name in _WINDOWS}

    def advance(self, now: float, at: datetime) -> None:
        """Advance the windows, and reset the totals of periods that have ended."""
        self.requests.advance(now)
        self.tokens.advance(now)
        if self.day != (day := day_of(at)):
            self.day, self.tokens_of_day, self.cost_of_day = day, 0, 0
        if self.month != (month := month_of(at)):
            self.month, self.tokens_of_month, self.cost_of_month = month, 0, 0

    def add_totals(self, tokens: int, cost: int, *, day: int, month: int) -> None:
        """Add to the totals of a day and a month, where these are still the current ones."""
        if self.day == day:
            self.tokens_of_day += tokens
            self.cost_of_day += cost
        if self.month == month:
            self.tokens_of_month += tokens
            self.cost_of_month += cost

    def is_idle(self) -> bool:
        """Return whether the account holds no usage, so that it can be dropped."""
        used = self.requests.total or self.tokens.total or self.tokens_of_month or self.cost_of_month
        return not (self.running or used)
