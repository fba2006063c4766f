"""Limit accounts that several servers share, in PostgreSQL.

Every decision is made under row locks of its accounts, by the same rules as in memory. Together the servers grant
exactly what one server would. Requests that arrive during a transaction are batched into the next one.
A reservation is a lease: its server renews it, and another server reclaims the leases of a dead server within a minute.

The accounts are in PostgreSQL because the registry is, and every request needs the registry anyway. A separate store
would be one more service to run, to secure and to lose.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import limit_accounts, usage
from app.database.session import Database
from app.domain.clock import utc_now
from app.domain.errors import RegistryUnavailable
from app.domain.limits.account import Account
from app.domain.limits.limiter import LimitBreach, Limiter, RateLimitStatus, Reservation, Subject
from app.domain.limits.limits import Limits
from app.domain.limits.periods import day_of, month_of
from app.domain.limits.remaining import Left, left
from app.services.limits.accounts import Decision, Health, decide
from app.services.limits.late_settlement import charge
from app.services.limits.refusal_cache import RefusalCache

logger = logging.getLogger(__name__)

#: Lifetime of a lease after its server's last renewal, in seconds.
LEASE_S = 60.0
#: Maximum requests, and expired leases, in one transaction.
_BATCH = 256
#: Seconds that a request waits for its decision where it is admitted without one.
_PATIENCE_S = 2.0
#: How long after its reservation was reclaimed a usage record can still affect a budget; the longest is of a month.
_REMEMBERED = timedelta(days=32)
#: Value of ``step`` in a reservation that was never counted.
_UNCOUNTED = -1


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    request_id: str
    limits: Mapping[Subject, Limits]
    tokens: int
    cost: int
    rated: bool
    decision: "asyncio.Future[Decision]"


class SharedAccounts:
    """Implementation of :class:`app.services.limits.accounts.Accounts` for all servers on one PostgreSQL.

    A subject without limits has no account. A new account starts with the usage records' sums of the subject's day and
    month.

    Args:
        admit: whether requests are admitted while the accounts are unavailable. Their usage is charged when the
            accounts are back, unless this server ends before that. Their concurrency is never counted.
    """

    def __init__(
        self,
        database: Database,
        node_id: str,
        *,
        admit: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._node_id, self._admit = database, node_id, admit
        self._available, self._uncounted = True, 0
        self._monotonic, self._refusals = monotonic, RefusalCache(monotonic)
        #: Reservation, tokens and cost of requests that were admitted uncounted.
        self._debts: list[tuple[Reservation, int, int]] = []
        self._pending: list[_PendingRequest] = []
        #: Tokens and cost of requests that have ended, by request id.
        self._ended: dict[str, tuple[int, int]] = {}
        self._working: asyncio.Task[None] | None = None
        #: One transaction at a time: two of this server's transactions would wait for each other's reservations.
        self._transaction = asyncio.Lock()

    async def take(
        self, request_id: str, limits: Mapping[Subject, Limits], tokens: int, cost: int = 0, *, rated: bool = True
    ) -> Decision:
        bound = {subject: limit for subject, limit in limits.items() if limit.as_json}
        if not bound:
            return Decision(Reservation((), 0, 0, 0, 0), RateLimitStatus(None, None))
        # A line of a batch can wait, so it is never admitted uncounted.
        admit = self._admit and rated
        if admit and not self._available:
            return self._let_in(bound)
        if refused := self.refusal(bound):
            return refused
        asked_at = self._monotonic()
        decision_made = asyncio.get_running_loop().create_future()
        request = _PendingRequest(request_id, bound, tokens, cost, rated, decision_made)
        self._pending.append(request)
        self._work()
        try:
            decision = await asyncio.wait_for(asyncio.shield(request.decision), _PATIENCE_S if admit else None)
        except (asyncio.CancelledError, TimeoutError) as error:
            # A reservation that arrives after its request gave up must be returned.
            request.decision.add_done_callback(lambda decision: self._give_back(request_id, decision))
            if not isinstance(error, TimeoutError):
                raise
            self._note(available=False)
            return self._let_in(bound)
        except RegistryUnavailable:
            if not admit:
                raise
            return self._let_in(bound)
        self._refusals.note(decision, asked_at)
        return decision

    def refusal(self, limits: Mapping[Subject, Limits]) -> Decision | None:
        return self._refusals.find(limits) if self._available or not self._admit else None

    def settle(self, request_id: str, reservation: Reservation, tokens: int, cost: int = 0) -> None:
        if reservation.step == _UNCOUNTED:
            self._debts.append((reservation, tokens, cost))
        elif reservation.subjects:
            self._ended[request_id] = tokens, cost
            self._work()

    def settle_with_record(self, request_id: str, reservation: Reservation, tokens: int, cost: int = 0) -> None:
        """Do nothing: the transaction that writes the record settles it, see :func:`settle_lines`."""

    @property
    def health(self) -> Health:
        return Health(self._available, self._uncounted)

    async def left(self, limits: Mapping[Subject, Limits]) -> dict[Subject, list[Left]]:
        async with self._database.read() as connection:
            at = await limit_accounts.moment(connection)
            stored = await limit_accounts.read(connection, limits)
            limiter = Limiter(stored)
            for subject in limits.keys() - stored.keys():
                for _, used in await usage.month_totals(connection, at, subject):
                    limiter.restore(subject, used, at.timestamp(), at)
        accounts = limiter.accounts
        return {
            subject: left(limit, accounts.get(subject) or Account(), at.timestamp(), at)
            for subject, limit in limits.items()
        }

    async def restore(self) -> None:
        """Reclaim the leases that an earlier process of this node left. The accounts themselves persist.

        That process's usage records must already be in the database.
        """
        async with self._transaction, self._database.write() as connection:
            await limit_accounts.expire(connection, self._node_id, await limit_accounts.moment(connection))
        await self._reclaim_all()

    async def maintain(self) -> None:
        async with self._transaction, self._database.write() as connection:
            at = await limit_accounts.moment(connection)
            await limit_accounts.renew(connection, self._node_id, at + timedelta(seconds=LEASE_S))
            await limit_accounts.forget_reclaimed(connection, at - _REMEMBERED)
        await self._reclaim_all()
        await self._charge()
        self._note(available=True)
        self._work()

    async def close(self) -> None:
        while self._working:
            await asyncio.wait([self._working])
        with suppress(RegistryUnavailable):
            await self._charge()
        if self._ended or self._debts:
            logger.warning("%d ended requests are not settled; their leases will expire.", len(self._ended))
            logger.warning("%d requests that were admitted uncounted will not be charged.", len(self._debts))

    def _work(self) -> None:
        if self._working is None:
            # The task serves later requests too. An empty context keeps this request's id out of its log lines.
            self._working = asyncio.create_task(self._decide_all(), context=Context())

    async def _decide_all(self) -> None:
        try:
            while self._pending or self._ended:
                pending, self._pending = self._pending[:_BATCH], self._pending[_BATCH:]
                ended, self._ended = self._ended, {}
                try:
                    decisions = await self._decide(pending, ended)
                except Exception as error:  # noqa: BLE001 - passed to all waiters, which would wait forever otherwise
                    self._ended = ended | self._ended  # retried by ``maintain`` at the latest
                    self._note(available=not isinstance(error, RegistryUnavailable))
                    _refuse(pending, error)
                    if not self._pending:
                        return
                else:
                    self._note(available=True)
                    for request, decision in zip(pending, decisions, strict=True):
                        request.decision.set_result(decision)
        finally:
            self._working = None

    async def _decide(self, pending: list[_PendingRequest], ended: Mapping[str, tuple[int, int]]) -> list[Decision]:
        async with self._transaction, self._database.write() as connection:
            at = await limit_accounts.moment(connection)
            now = at.timestamp()
            to_settle = await limit_accounts.take_reservations(connection, ended)
            subjects = {subject for request in pending for subject in request.limits}
            subjects |= {subject for reservation in to_settle.values() for subject in reservation.subjects}
            limiter = Limiter(await _accounts(connection, subjects, now, at))
            for request_id, reservation in to_settle.items():
                tokens, cost = ended[request_id]
                limiter.settle(reservation, tokens, now, at, cost=cost)
            decisions = [
                decide(limiter, request.limits, request.tokens, request.cost, now, at, rated=request.rated)
                for request in pending
            ]
            await limit_accounts.save(connection, limiter.accounts, subjects)
            reservations = {
                request.request_id: decision.outcome
                for request, decision in zip(pending, decisions, strict=True)
                if not isinstance(decision.outcome, LimitBreach)
            }
            expires_at = at + timedelta(seconds=LEASE_S)
            await limit_accounts.add_reservations(
                connection, reservations, node_id=self._node_id, expires_at=expires_at
            )
        return decisions

    async def _charge(self) -> None:
        """Charge what was admitted uncounted."""
        debts, self._debts = self._debts, []
        try:
            while debts:
                async with self._transaction, self._database.write() as connection:
                    await charge(connection, debts[:_BATCH], minute=True)
                debts = debts[_BATCH:]
        finally:
            self._debts = debts + self._debts

    def _let_in(self, bound: Mapping[Subject, Limits]) -> Decision:
        self._uncounted += 1
        at = utc_now()
        return Decision(Reservation(tuple(bound), 0, _UNCOUNTED, day_of(at), month_of(at)), RateLimitStatus(None, None))

    def _note(self, *, available: bool) -> None:
        if available is not self._available:
            self._available = available
            if available:
                logger.warning("Limits are counted again; %d requests were admitted uncounted so far.", self._uncounted)
            else:
                consequence = "admitted uncounted" if self._admit else "refused"
                logger.error("Limits cannot be counted; requests of tenants with limits are %s.", consequence)

    async def _reclaim_all(self) -> None:
        while await self._reclaim():
            pass

    async def _reclaim(self) -> bool:
        """Reclaim expired leases of dead servers. Returns whether there may be more."""
        async with self._transaction, self._database.write() as connection:
            at = await limit_accounts.moment(connection)
            if not (expired := await limit_accounts.take_expired(connection, at, limit=_BATCH)):
                return False
            await limit_accounts.lock_reclaimed(connection, alone=True)
            subjects = {subject for reservation in expired.values() for subject in reservation.subjects}
            limiter = Limiter(await _accounts(connection, subjects, at.timestamp(), at))
            # A request that was never settled may have a usage record, or the record may still be on its way.
            used = await usage.used_by(connection, expired)
            late = {request_id: reservation for request_id, reservation in expired.items() if request_id not in used}
            await limit_accounts.add_reclaimed(connection, late, at)
            for request_id, reservation in expired.items():
                tokens, cost = used.get(request_id, (0, 0))
                limiter.settle(reservation, tokens, at.timestamp(), at, cost=cost)
            await limit_accounts.save(connection, limiter.accounts, subjects)
        return len(expired) == _BATCH

    def _give_back(self, request_id: str, decision: "asyncio.Future[Decision]") -> None:
        if not decision.exception() and isinstance(outcome := decision.result().outcome, Reservation):
            self.settle(request_id, outcome, 0)


def _refuse(pending: list[_PendingRequest], error: Exception) -> None:
    if not isinstance(error, RegistryUnavailable):
        logger.error("Limits could not be counted.", exc_info=error)
    for request in pending:
        request.decision.set_exception(error)
        request.decision.exception()  # mark as retrieved, even if the waiter is gone


async def _accounts(
    connection: AsyncConnection, subjects: set[Subject], now: float, at: datetime
) -> dict[Subject, Account]:
    """Lock the accounts. A new account starts with its subject's usage of the day and month."""
    locked = await limit_accounts.lock(connection, subjects)
    if all(locked.values()):
        return {subject: account for subject, account in locked.items() if account}
    fresh = Limiter({subject: account for subject, account in locked.items() if account})
    for subject in (subject for subject, account in locked.items() if account is None):
        for _, used in await usage.month_totals(connection, at, subject):
            fresh.restore(subject, used, now, at)
    return dict(fresh.accounts)
