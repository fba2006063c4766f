"""How much may be asked for, as plain frozen data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from app.domain.money import amount_text, parse_amount

#: Those of :class:`Limits` that are amounts of money.
COSTS = frozenset({"cost_per_day", "cost_per_month"})


@dataclass(frozen=True, slots=True)
class Limits:
    """What one subject, a tenant, a key or an adapter, may use; None: no limit.

    Tokens are those of prompts and answers together. A minute is any sixty seconds, days and months are UTC's.

    Attributes:
        concurrent_requests: that have not ended.
        tokens_per_request: prompt and the most that its answer may have.
        cost_per_day, cost_per_month: in picos, see :mod:`app.domain.money`.
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
        """What :attr:`given` gave."""
        return cls(**{name: parse_amount(limit) if name in COSTS else limit for name, limit in stored.items()})

    @property
    def given(self) -> dict[str, int | str]:
        """Those that are set, as people read them: money as decimals."""
        found = {name: limit for name, limit in asdict(self).items() if limit is not None}
        return {name: amount_text(limit) if name in COSTS else limit for name, limit in found.items()}

    @property
    def counts_tokens(self) -> bool:
        """Whether a request's tokens must be known before it runs."""
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
        """Whether what comes within a minute is limited."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None

    @property
    def of_requests(self) -> "Limits":
        """Those that ask nothing of a request but that it comes."""
        return Limits(requests_per_minute=self.requests_per_minute, concurrent_requests=self.concurrent_requests)


#: A subject's until somebody sets others.
UNLIMITED = Limits()
