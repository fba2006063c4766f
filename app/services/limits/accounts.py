"""Port: accounts on which the usage of tenants, keys and adapters is counted against their limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from app.domain.limits.limiter import LimitBreach, Limiter, RateLimitStatus, Reservation, Subject
from app.domain.limits.limits import Limits
from app.domain.limits.remaining import Left


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of one request's admission check.

    Attributes:
        outcome: reservation, or the limit that the request exceeds.
        rate_limits: rate limit status of tenant and key after the decision. The adapter's is left out, as it would
            reveal other callers' usage.
    """

    outcome: Reservation | LimitBreach
    rate_limits: RateLimitStatus


@dataclass(frozen=True, slots=True)
class Health:
    """Availability of the accounts.

    Attributes:
        uncounted: number of requests admitted without a check, because the accounts were unavailable.
    """

    available: bool
    uncounted: int


class Accounts(Protocol):
    """Usage accounts of all subjects.

    Raises (every async method except ``close``):
        RegistryUnavailable: the accounts cannot be reached.
    """

    @property
    def health(self) -> Health:
        """Availability, for the platform's metrics."""

    async def take(
        self, request_id: str, limits: Mapping[Subject, Limits], tokens: int, cost: int = 0, *, rated: bool = True
    ) -> Decision:
        """Reserve the tokens and the cost that a request can use, on all its subjects or on none.

        Args:
            rated: False for a line of a batch, see :meth:`Limiter.take`.
        """

    def refusal(self, limits: Mapping[Subject, Limits]) -> Decision | None:
        """Return the refusal of any request whose request rate this server knows to be exceeded. Reserves nothing."""

    def settle(self, request_id: str, reservation: Reservation, tokens: int, cost: int = 0) -> None:
        """Return the unused part of a finished request's reservation. Call it once for each; it never blocks."""

    def settle_with_record(self, request_id: str, reservation: Reservation, tokens: int, cost: int = 0) -> None:
        """Settle a line of a batch whose record is durable on this server. It counts only if its record is accepted.

        See :func:`app.services.limits.late_settlement.settle_lines`.
        """

    async def left(self, limits: Mapping[Subject, Limits]) -> dict[Subject, list[Left]]:
        """Return the remaining allowance of these subjects for each of their limits."""

    async def restore(self) -> None:
        """Recover the usage from before this process. Call it once, before the first request."""

    async def maintain(self) -> None:
        """Run maintenance. Call it every few seconds."""

    async def close(self) -> None:
        """Settle the requests that are still pending."""


def decide(
    limiter: Limiter,
    limits: Mapping[Subject, Limits],
    tokens: int,
    cost: int,
    now: float,
    at: datetime,
    *,
    rated: bool = True,
) -> Decision:
    """Run an admission check on a limiter that holds the accounts."""
    try:
        outcome: Reservation | LimitBreach = limiter.take(limits, tokens, now, at, cost=cost, rated=rated)
    except LimitBreach as breach:
        outcome = breach
    return Decision(outcome, rate_limit_status(limiter, limits, now, at))


def rate_limit_status(limiter: Limiter, limits: Mapping[Subject, Limits], now: float, at: datetime) -> RateLimitStatus:
    """Return the rate-limit status of a request's tenant and key."""
    own = {subject: limit for subject, limit in limits.items() if subject[0] != "adapter"}
    return limiter.rate_limit_status(own, now, at)
