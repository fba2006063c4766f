"""In-memory limit accounts of a single server.

They are rebuilt from the usage records at startup. Requests that had ended by then count to the token. Requests that
were running when the server died never completed, and their reservations are dropped.
"""

import time
from collections.abc import Callable, Mapping

from app.database import usage
from app.database.session import Database
from app.domain.batches import is_line
from app.domain.clock import Clock, utc_now
from app.domain.limits.account import Account
from app.domain.limits.limiter import LimitBreach, Limiter, Reservation, Subject, subjects_of
from app.domain.limits.limits import Limits
from app.domain.limits.minute_window import SPAN_S
from app.domain.limits.remaining import Left, left
from app.services.limits.accounts import Decision, Health, decide, rate_limit_status

#: Accounts to tidy in one pass. Otherwise an unused key keeps its last minute, step by step, until the month is over.
_TIDIED = 1000


class MemoryAccounts:
    """In-memory implementation of :class:`app.services.limits.accounts.Accounts`."""

    def __init__(
        self, database: Database, *, clock: Clock = utc_now, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database, self._clock, self._monotonic = database, clock, monotonic
        self._limiter = Limiter()

    @property
    def health(self) -> Health:
        return Health(available=True, uncounted=0)

    async def take(
        self, _request_id: str, limits: Mapping[Subject, Limits], tokens: int, cost: int = 0, *, rated: bool = True
    ) -> Decision:
        return decide(self._limiter, limits, tokens, cost, self._monotonic(), self._clock(), rated=rated)

    def refusal(self, limits: Mapping[Subject, Limits]) -> Decision | None:
        now, at = self._monotonic(), self._clock()
        try:
            self._limiter.check_requests(limits, now, at)
        except LimitBreach as breach:
            return Decision(breach, rate_limit_status(self._limiter, limits, now, at))
        return None

    def settle(self, _request_id: str, reservation: Reservation, tokens: int, cost: int = 0) -> None:
        self._limiter.settle(reservation, tokens, self._monotonic(), self._clock(), cost=cost)

    def settle_with_record(self, request_id: str, reservation: Reservation, tokens: int, cost: int = 0) -> None:
        self.settle(request_id, reservation, tokens, cost)

    async def left(self, limits: Mapping[Subject, Limits]) -> dict[Subject, list[Left]]:
        accounts, now, at = self._limiter.accounts, self._monotonic(), self._clock()
        return {subject: left(limit, accounts.get(subject) or Account(), now, at) for subject, limit in limits.items()}

    async def restore(self) -> None:
        now, at = self._monotonic(), self._clock()
        async with self._database.read() as connection:
            budgets = await usage.month_totals(connection, at)
            recent = await usage.records_since(connection, at, seconds=SPAN_S)
        for subjects, used in budgets:
            for subject in subjects:
                self._limiter.restore(subject, used, now, at)
        for record, adapter_id in recent:
            if is_line(record.request_id):
                continue  # lines of batches do not count in the minute
            # A clock that was set back must not keep them counted for longer than a minute.
            arrived_s = min(now, now - (at - record.at).total_seconds())
            for subject in subjects_of(record.tenant_id, record.key_id, adapter_id):
                self._limiter.restore_request(subject, record.prompt_tokens + record.output_tokens, arrived_s, at)

    async def maintain(self) -> None:
        self._limiter.tidy(self._monotonic(), self._clock(), _TIDIED)

    async def close(self) -> None:
        """Do nothing: the usage records hold everything."""
