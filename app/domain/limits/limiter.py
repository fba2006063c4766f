"""Rate limiter and budgets for tenants, keys and adapters.

A request takes all its limits atomically. Tokens are reserved at admission, at the upper bound, and settled at the end;
both count at the time of admission. State in, decision out: no clock, no I/O.
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
    """A limit that another request would exceed.

    Attributes:
        name: name of the limit in :class:`Limits`.
        found: usage of the subject with this request.
        retry_after_s: seconds until the request fits if no other arrives; None: never.
    """

    def __init__(self, subject: Subject, name: str, found: int, allowed: int, retry_after_s: float | None) -> None:
        self.subject, self.name, self.found, self.allowed = subject, name, found, allowed
        self.retry_after_s = retry_after_s
        super().__init__(f"{name} of the {subject[0]} would be {found}; the limit is {allowed}.")


@dataclass(frozen=True, slots=True)
class RateStatus:
    """Status of one limit per minute.

    Attributes:
        remaining: amount that still fits now.
        reset_s: seconds until the whole limit is available.
    """

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class RateLimitStatus:
    """Tightest limits per minute of a request, over all its subjects; None: no limit.

    The tightest limit has the smallest share left.
    """

    requests: RateStatus | None
    tokens: RateStatus | None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Amounts reserved for a request until they are settled.

    Attributes:
        rated: whether the request counts in the minute and among the requests in flight. A line of a batch does not.
    """

    subjects: tuple[Subject, ...]
    tokens: int
    step: int
    day: int
    month: int
    cost: int = 0
    rated: bool = True


class Limiter:
    """Accounts of all subjects with usage in the current month.

    Args:
        accounts: existing accounts.
    """

    def __init__(self, accounts: Mapping[Subject, Account] = MappingProxyType({})) -> None:
        self._accounts = dict(accounts)

    def take(
        self,
        limits: Mapping[Subject, Limits],
        tokens: int,
        now: float,
        at: datetime,
        *,
        cost: int = 0,
        rated: bool = True,
    ) -> Reservation:
        """Reserve a request's upper bounds of tokens and of cost (in picos) against its limits.

        Args:
            limits: limits of each of its subjects.
            now: monotonic time in seconds.
            at: the same moment in UTC.
            rated: False for a line of a batch, which counts against budgets of days and months only.

        Raises:
            LimitBreach: the breached limit with the longest wait; nothing is reserved.
        """
        applied = limits if rated else {subject: limit.of_budgets for subject, limit in limits.items()}
        self._check(applied, tokens, now, at, cost)
        accounts = [self._account(subject, now, at) for subject in limits]
        step, day, month = 0, day_of(at), month_of(at)
        for account in accounts:
            if rated:
                account.requests.add(now, 1)
                step = account.tokens.add(now, tokens)
                account.running += 1
            account.add_totals(tokens, cost, day=day, month=month)
        return Reservation(tuple(limits), tokens, step, day, month, cost, rated)

    def check_requests(self, limits: Mapping[Subject, Limits], now: float, at: datetime) -> None:
        """Raise the error that :meth:`take` would raise for a request without tokens; reserve nothing."""
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

    def settle(self, reservation: Reservation, tokens: int, now: float, at: datetime, *, cost: int = 0) -> None:
        """Replace a reservation with the true tokens and cost (in picos) of a finished request.

        Call it once per reservation.
        """
        difference = tokens - reservation.tokens
        for subject in reservation.subjects:
            account = self._account(subject, now, at)
            if reservation.rated:
                account.running -= 1
                account.tokens.correct(reservation.step, difference)
            account.add_totals(difference, cost - reservation.cost, day=reservation.day, month=reservation.month)
        self._forget_idle(reservation.subjects)

    def charge(
        self, reservation: Reservation, tokens: int, cost: int, now: float, at: datetime, *, minute: bool
    ) -> None:
        """Add usage after the fact.

        Args:
            minute: True to count the request in the minute from now on; False if that minute counted it at admission.
        """
        for subject in reservation.subjects:
            account = self._account(subject, now, at)
            if minute:
                account.requests.add(now, 1)
                account.tokens.add(now, tokens)
            account.add_totals(tokens, cost, day=reservation.day, month=reservation.month)

    def rate_limit_status(self, limits: Mapping[Subject, Limits], now: float, at: datetime) -> RateLimitStatus:
        """Return the rate limit status of a request's subjects."""
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
        """Add usage of the current day and month from before this limiter existed."""
        account = self._account(subject, now, at)
        account.tokens_of_day += used.tokens_of_day
        account.tokens_of_month += used.tokens_of_month
        account.cost_of_day += used.cost_of_day
        account.cost_of_month += used.cost_of_month

    def restore_request(self, subject: Subject, tokens: int, arrived_s: float, at: datetime) -> None:
        """Add a request of the last minute; call it in order of arrival, before any new request."""
        account = self._account(subject, arrived_s, at)
        account.requests.add(arrived_s, 1)
        account.tokens.add(arrived_s, tokens)

    def tidy(self, now: float, at: datetime, most: int) -> None:
        """Advance up to ``most`` accounts and drop the idle ones; successive calls cover all accounts in rotation."""
        for subject in list(islice(self._accounts, most)):
            account = self._accounts.pop(subject)
            account.advance(now, at)
            if not account.is_idle():
                self._accounts[subject] = account  # last in the rotation

    @property
    def accounts(self) -> Mapping[Subject, Account]:
        """Accounts with usage."""
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
    """Return the subjects whose limits apply: the tenant, the key and, if there is one, the adapter."""
    own: tuple[Subject, Subject] = ("tenant", str(tenant_id)), ("key", key_id)
    return own if adapter_id is None else (*own, ("adapter", str(adapter_id)))


def _breaches(
    subject: Subject, account: Account, limits: Limits, tokens: int, cost: int, now: float, at: datetime
) -> list[LimitBreach]:
    """Return every limit that the request would exceed."""
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
    """Return the seconds until the request fits; None if it exceeds the limit by itself."""
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
