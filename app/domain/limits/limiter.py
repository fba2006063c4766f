"""What each tenant and key has used lately, and whether one request more may run.

All limits of a request are taken together or not at all. Tokens are taken before it runs, as many as it can use, and
settled when it has ended; both count for the moment at which it came. State in, decision out: no clock, no I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import Literal

from app.domain.limits.account import Account, PeriodTotals
from app.domain.limits.limits import UNLIMITED, Limits
from app.domain.limits.minute_window import MinuteWindow
from app.domain.limits.periods import day_left_s, day_of, month_left_s, month_of

#: ``("tenant", "7")``, ``("key", "8f3a...")`` or ``("adapter", "3")``.
Subject = tuple[Literal["tenant", "key", "adapter"], str]


class LimitBreach(Exception):
    """A limit that one request more would go beyond.

    Attributes:
        name: of :class:`Limits`.
        found: what the subject would have used with it.
        retry_after_s: seconds until it fits if nothing else comes; None: it never does.
    """

    def __init__(self, subject: Subject, name: str, found: int, allowed: int, retry_after_s: float | None) -> None:
        self.subject, self.name, self.found, self.allowed = subject, name, found, allowed
        self.retry_after_s = retry_after_s
        super().__init__(f"{subject[0]} {name}: found {found}, allowed {allowed}")


@dataclass(frozen=True, slots=True)
class RateStatus:
    """Where a subject stands with one limit per minute.

    Attributes:
        remaining: what still fits now.
        reset_s: seconds until all of it does.
    """

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class RateLimitStatus:
    """The nearest limits of a request: of all its subjects the one with the least left; None: no limit."""

    requests: RateStatus | None
    tokens: RateStatus | None


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a request was given, until it is settled."""

    subjects: tuple[Subject, ...]
    tokens: int
    step: int
    day: int
    month: int
    cost: int = 0


class Limiter:
    """The accounts of all subjects that have used something this month.

    Args:
        accounts: those that there are already.
    """

    def __init__(self, accounts: Mapping[Subject, Account] = MappingProxyType({})) -> None:
        self._accounts = dict(accounts)

    def take(
        self, limits: Mapping[Subject, Limits], tokens: int, now: float, at: datetime, *, cost: int = 0
    ) -> Reservation:
        """Let a request run that can use so many tokens, and cost so many picos, at most.

        Args:
            limits: of each of its subjects.
            now: monotonic, in seconds.
            at: the same moment in UTC.

        Raises:
            Exceeded: of all limits that it would go beyond the one to wait for longest; nothing is taken.
        """
        self._check(limits, tokens, now, at, cost)
        accounts = [self._account(subject, now, at) for subject in limits]
        step, day, month = 0, day_of(at), month_of(at)
        for account in accounts:
            account.requests.add(now, 1)
            step = account.tokens.add(now, tokens)
            account.running += 1
            account.add_sums(tokens, cost, day=day, month=month)
        return Reservation(tuple(limits), tokens, step, day, month, cost)

    def check_requests(self, limits: Mapping[Subject, Limits], now: float, at: datetime) -> None:
        """Raise what :meth:`take` would of a request that needs no token; take nothing."""
        self._check({subject: limit.of_requests for subject, limit in limits.items()}, 0, now, at, 0)

    def _check(self, limits: Mapping[Subject, Limits], tokens: int, now: float, at: datetime, cost: int) -> None:
        limited = {subject: limit for subject, limit in limits.items() if limit != UNLIMITED}
        breaches = [
            breach
            for subject, limit in limited.items()
            for breach in _breaches(subject, self._account(subject, now, at), limit, tokens, cost, now, at)
        ]
        self._forget_idle(limited)
        if breaches:
            raise max(breaches, key=_wait)

    def settle(self, grant: Reservation, tokens: int, now: float, at: datetime, *, cost: int = 0) -> None:
        """The request has ended, used so many tokens and cost so many picos: what it took beyond them is given back.

        Once per grant.
        """
        difference = tokens - grant.tokens
        for subject in grant.subjects:
            account = self._account(subject, now, at)
            account.running -= 1
            account.tokens.correct(grant.step, difference)
            account.add_sums(difference, cost - grant.cost, day=grant.day, month=grant.month)
        self._forget_idle(grant.subjects)

    def charge(self, grant: Reservation, tokens: int, cost: int, now: float, at: datetime, *, minute: bool) -> None:
        """Count a request afterwards.

        Args:
            minute: whether it counts for the minute from now on too; not if that had it when it came.
        """
        for subject in grant.subjects:
            account = self._account(subject, now, at)
            if minute:
                account.requests.add(now, 1)
                account.tokens.add(now, tokens)
            account.add_sums(tokens, cost, day=grant.day, month=grant.month)

    def standing(self, limits: Mapping[Subject, Limits], now: float, at: datetime) -> RateLimitStatus:
        """Where a request's subjects stand now."""
        requests, tokens = list[RateStatus](), list[RateStatus]()
        rated = {subject: limit for subject, limit in limits.items() if limit.of_minutes}
        for subject, limit in rated.items():
            account = self._account(subject, now, at)
            if limit.requests_per_minute is not None:
                requests.append(_rate(account.requests, limit.requests_per_minute, now))
            if limit.tokens_per_minute is not None:
                tokens.append(_rate(account.tokens, limit.tokens_per_minute, now))
        self._forget_idle(rated)
        return RateLimitStatus(min(requests, key=_left, default=None), min(tokens, key=_left, default=None))

    def restore(self, subject: Subject, used: PeriodTotals, now: float, at: datetime) -> None:
        """Add what a subject used before this limiter was made, of the day and month that it is."""
        account = self._account(subject, now, at)
        account.tokens_of_day += used.tokens_of_day
        account.tokens_of_month += used.tokens_of_month
        account.cost_of_day += used.cost_of_day
        account.cost_of_month += used.cost_of_month

    def restore_request(self, subject: Subject, tokens: int, came: float, at: datetime) -> None:
        """Add a request of the last minute; in the order that they came, before any new one."""
        account = self._account(subject, came, at)
        account.requests.add(came, 1)
        account.tokens.add(came, tokens)

    def tidy(self, now: float, at: datetime, most: int) -> None:
        """Forget what has left its minute, day and month, of as many accounts as are given, all of them in turn."""
        for subject in list(islice(self._accounts, most)):
            account = self._accounts.pop(subject)
            account.advance(now, at)
            if not account.is_idle():
                self._accounts[subject] = account  # last in turn now

    @property
    def accounts(self) -> Mapping[Subject, Account]:
        """Those with something in them."""
        return self._accounts

    def _account(self, subject: Subject, now: float, at: datetime) -> Account:
        account = self._accounts.get(subject)
        if account is None:
            account = self._accounts[subject] = Account()
        account.advance(now, at)
        return account

    def _forget_idle(self, subjects: Mapping[Subject, Limits] | tuple[Subject, ...]) -> None:
        for subject in subjects:
            if self._accounts[subject].is_idle():
                del self._accounts[subject]


def subjects_of(tenant_id: int, key_id: str, adapter_id: int | None) -> tuple[Subject, ...]:
    """Whose limits a key's request is bound by: its tenant's, its own, and those of an adapter, if it names one."""
    own: tuple[Subject, Subject] = ("tenant", str(tenant_id)), ("key", key_id)
    return own if adapter_id is None else (*own, ("adapter", str(adapter_id)))


def _breaches(
    subject: Subject, account: Account, limits: Limits, tokens: int, cost: int, now: float, at: datetime
) -> list[LimitBreach]:
    """Every limit that one request more would go beyond."""
    counted = (
        ("tokens_per_request", 0, tokens),
        ("concurrent_requests", account.running, 1),
        ("tokens_per_day", account.tokens_of_day, tokens),
        ("tokens_per_month", account.tokens_of_month, tokens),
        ("cost_per_day", account.cost_of_day, cost),
        ("cost_per_month", account.cost_of_month, cost),
        ("requests_per_minute", account.requests.total, 1),
        ("tokens_per_minute", account.tokens.total, tokens),
    )
    return [
        LimitBreach(subject, name, used + more, allowed, _wait_s(name, account, more, allowed, now, at))
        for name, used, more in counted
        if (allowed := getattr(limits, name)) is not None and used + more > allowed
    ]


def _wait_s(name: str, account: Account, more: int, allowed: int, now: float, at: datetime) -> float | None:
    """Seconds until it fits; what is larger than the limit by itself never does."""
    if more > allowed:
        return None
    if name == "concurrent_requests":
        return 1.0
    if name.endswith("_per_minute"):
        window = account.requests if name == "requests_per_minute" else account.tokens
        return window.room_in(now, more, allowed)
    return day_left_s(at) if name.endswith("_per_day") else month_left_s(at)


def _rate(window: MinuteWindow, limit: int, now: float) -> RateStatus:
    return RateStatus(limit, max(0, limit - window.total), window.empty_in(now))


def _wait(breach: LimitBreach) -> float:
    return float("inf") if breach.retry_after_s is None else breach.retry_after_s


def _left(rate: RateStatus) -> float:
    return rate.remaining / max(1, rate.limit)
