"""Rate limits and budgets, as frozen data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from app.domain.money import amount_text, parse_amount

#: Limits of :class:`Limits` that are amounts of money.
COSTS = frozenset({"cost_per_day", "cost_per_month"})


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one subject: a tenant, a key or an adapter; None means no limit.

    Tokens are those of prompts and answers together. A minute is any 60 seconds; days and months are in UTC.

    Attributes:
        concurrent_requests: requests in flight.
        tokens_per_request: prompt tokens plus the maximum of output tokens.
        cost_per_day, cost_per_month: budgets in picos, see :mod:`app.domain.money`.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    tokens_per_request: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    cost_per_day: int | None = None
    cost_per_month: int | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Parse the output of :attr:`as_json`."""
        return cls(**{name: parse_amount(limit) if name in COSTS else limit for name, limit in stored.items()})

    @property
    def as_json(self) -> dict[str, int | str]:
        """Limits that are set, for display and JSON: money as decimals."""
        limits = {name: limit for name, limit in asdict(self).items() if limit is not None}
        return {name: amount_text(limit) if name in COSTS else limit for name, limit in limits.items()}

    @property
    def counts_tokens(self) -> bool:
        """True if a request's tokens must be known before it runs."""
        return any(
            limit is not None
            for limit in (
                self.tokens_per_minute,
                self.tokens_per_request,
                self.tokens_per_day,
                self.tokens_per_month,
                self.cost_per_day,
                self.cost_per_month,
            )
        )

    @property
    def of_minutes(self) -> bool:
        """True if there is a limit per minute."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None

    @property
    def of_requests(self) -> "Limits":
        """Limits that apply to a request without knowledge of its tokens."""
        return Limits(requests_per_minute=self.requests_per_minute, concurrent_requests=self.concurrent_requests)

    @property
    def of_budgets(self) -> "Limits":
        """Budgets of days and months; they also apply to lines of batches."""
        return Limits(
            tokens_per_day=self.tokens_per_day,
            tokens_per_month=self.tokens_per_month,
            cost_per_day=self.cost_per_day,
            cost_per_month=self.cost_per_month,
        )


#: Default limits of a subject.
UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class TokenBound:
    """Upper bound of the tokens that one request can use.

    Attributes:
        prompt: tokens of all prompts, each prompt counted once.
        output: tokens of all answers together.
    """

    prompt: int
    output: int
