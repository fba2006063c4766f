"""How much may be asked for, as plain frozen data."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one subject, a tenant, a key or an adapter, may use; None: no limit.

    Tokens are those of prompts and answers together. A minute is any sixty seconds, days and months are UTC's.

    Attributes:
        concurrent_requests: that have not ended.
        tokens_per_request: prompt and the most that its answer may have.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    tokens_per_request: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None

    @property
    def given(self) -> dict[str, int]:
        """Those that are set."""
        return {name: limit for name, limit in asdict(self).items() if limit is not None}

    @property
    def counts_tokens(self) -> bool:
        """Whether a request's tokens must be known before it runs."""
        return any(
            limit is not None
            for limit in (self.tokens_per_minute, self.tokens_per_request, self.tokens_per_day, self.tokens_per_month)
        )


#: A subject's until somebody sets others.
UNLIMITED = Limits()
