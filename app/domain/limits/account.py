"""What one subject has used, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from app.domain.limits.minute_window import MinuteWindow
from app.domain.limits.periods import day_of, month_of

_WINDOWS = ("requests", "tokens")


@dataclass(frozen=True, slots=True)
class PeriodTotals:
    """What was used of a day and of its month; costs in picos."""

    tokens_of_day: int = 0
    tokens_of_month: int = 0
    cost_of_day: int = 0
    cost_of_month: int = 0


@dataclass(slots=True)
class Account:
    """What one subject has used.

    Attributes:
        running: requests that have not ended.
        day, month: which ones the sums of tokens and of their cost, in picos, are of.
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
        """What :attr:`stored` gave."""
        windows = {name: MinuteWindow.of(stored[name]) for name in _WINDOWS}
        return cls(**{**stored, **windows})

    @property
    def stored(self) -> dict[str, Any]:
        """As JSON."""
        numbers = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _WINDOWS}
        return numbers | {name: getattr(self, name).steps for name in _WINDOWS}

    def advance(self, now: float, at: datetime) -> None:
        """Begin new minutes, days and months."""
        self.requests.advance(now)
        self.tokens.advance(now)
        if self.day != (day := day_of(at)):
            self.day, self.tokens_of_day, self.cost_of_day = day, 0, 0
        if self.month != (month := month_of(at)):
            self.month, self.tokens_of_month, self.cost_of_month = month, 0, 0

    def add_sums(self, tokens: int, cost: int, *, day: int, month: int) -> None:
        """Change what was used of a day and a month, if they are still those."""
        if self.day == day:
            self.tokens_of_day += tokens
            self.cost_of_day += cost
        if self.month == month:
            self.tokens_of_month += tokens
            self.cost_of_month += cost

    def is_idle(self) -> bool:
        """Whether forgetting it changes nothing."""
        used = self.requests.total or self.tokens.total or self.tokens_of_month or self.cost_of_month
        return not (self.running or used)
