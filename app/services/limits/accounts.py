"""The port of the accounts that limits are counted on."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from app.domain.limits.limiter import LimitBreach, Limiter, RateLimitStatus, Reservation, Subject
from app.domain.limits.limits import Limits
from app.domain.limits.remaining import Left


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one request's wish.

    Attributes:
        outcome: what it was given, or the limit that was in its way.
        standing: where its tenant and key stand after that; what others use of an adapter is not theirs to know.
    """

    outcome: Reservation | LimitBreach
    standing: RateLimitStatus


@dataclass(frozen=True, slots=True)
class Health:
    """Whether accounts can be asked.

    Attributes:
        uncounted: requests that were let in without being asked for, as they could not.
    """

    available: bool
    uncounted: int


class Accounts(Protocol):
    """What all subjects have used."""

    @property
    def health(self) -> Health:
        """For the platform."""

    async def take(self, request_id: str, limits: Mapping[Subject, Limits], tokens: int, cost: int = 0) -> Decision:
        """Take what a request can use and cost, of all its subjects or of none.

        Raises:
            RegistryUnavailable: nobody can say what there is.
        """

    def refusal(self, limits: Mapping[Subject, Limits]) -> Decision | None:
        """What any request would be told now that there are too many of them, if this server knows; takes nothing."""

    def settle(self, request_id: str, grant: Reservation, tokens: int, cost: int = 0) -> None:
        """Give back what a request did not use that has ended. Once per grant; it never waits."""

    async def left(self, limits: Mapping[Subject, Limits]) -> dict[Subject, list[Left]]:
        """Where these subjects stand with each limit that they have.

        Raises:
            RegistryUnavailable
        """

    async def restore(self) -> None:
        """Count what was used before this process began; once, before the first request.

        Raises:
            RegistryUnavailable
        """

    async def tend(self) -> None:
        """What is to be done every few seconds.

        Raises:
            RegistryUnavailable
        """

    async def close(self) -> None:
        """Settle what is left."""


def decide(
    limiter: Limiter, limits: Mapping[Subject, Limits], tokens: int, cost: int, now: float, at: datetime
) -> Decision:
    """Ask a limiter that has the accounts."""
    try:
        outcome: Reservation | LimitBreach = limiter.take(limits, tokens, now, at, cost=cost)
    except LimitBreach as exceeded:
        outcome = exceeded
    return Decision(outcome, standing(limiter, limits, now, at))


def standing(limiter: Limiter, limits: Mapping[Subject, Limits], now: float, at: datetime) -> RateLimitStatus:
    """Where a request's tenant and key stand."""
    own = {subject: limit for subject, limit in limits.items() if subject[0] != "adapter"}
    return limiter.standing(own, now, at)
