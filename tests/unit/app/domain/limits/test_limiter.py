"""Limiter against a reference model, a list of all admitted requests: admits no more, and no less, than fits."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.domain.limits.account import Account, PeriodTotals
from app.domain.limits.limiter import LimitBreach, Limiter, Reservation, Subject
from app.domain.limits.limits import Limits
from app.domain.limits.minute_window import SPAN_S, MinuteWindow

START = datetime(2026, 11, 30, 23, 58, tzinfo=UTC)
TENANT: Subject = ("tenant", "7")
KEYS: tuple[Subject, ...] = (("key", "a"), ("key", "b"))
ADAPTER: Subject = ("adapter", "3")
BUDGETS = {"tokens_per_day", "tokens_per_month", "cost_per_day", "cost_per_month"}
#: Seconds by which a window may keep a request too long.
STEP_S = 0.2


def at(now: float) -> datetime:
    return START + timedelta(seconds=now)


@dataclass
class Admitted:
    """An admitted request."""

    came: float
    subjects: tuple[Subject, ...]
    tokens: int
    cost: int
    reservation: Reservation | None
    rated: bool = True


class Traffic(RuleBasedStateMachine):
    """Requests of one tenant by two keys, each with separate limits, over two days and the end of a month.

    Some name an adapter that also has limits, the others use the base model.
    """

    limits: ClassVar[dict[Subject, Limits]] = {
        TENANT: Limits(9, 900, 5, 500, 3000, 5000),
        KEYS[0]: Limits(requests_per_minute=6, tokens_per_minute=500),
        KEYS[1]: Limits(concurrent_requests=3, tokens_per_day=2000),
        ADAPTER: Limits(4, 600, 2, 400, 1500, 2500, 4 * 10**20, 6 * 10**20),
    }

    def __init__(self) -> None:
        super().__init__()
        self.limiter, self.now, self.admitted = Limiter(), 0.0, list[Admitted]()

    @rule(seconds=st.one_of(st.floats(0, 2), st.floats(0, 70), st.just(40_000.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(key=st.sampled_from(KEYS), tokens=st.integers(0, 600), cost=st.integers(0, 10**20), of_adapter=st.booleans())
    def ask(self, key: Subject, tokens: int, cost: int, of_adapter: bool) -> None:
        own = {subject: self.limits[subject] for subject in (TENANT, key, *([ADAPTER] if of_adapter else []))}
        in_any_case = self.is_refused(own)
        try:
            reservation = self.limiter.take(own, tokens, self.now, at(self.now), cost=cost)
        except LimitBreach as error:
            refusal = error
        else:
            assert not in_any_case
            self.admitted.append(Admitted(self.now, tuple(own), tokens, cost, reservation))
            return
        limits_of_requests = {"requests_per_minute", "concurrent_requests"}
        assert in_any_case or refusal.name not in limits_of_requests
        assert any(self.used(subject, tokens, cost, late_s=STEP_S) for subject in own), f"there is room, yet {refusal}"
        assert refusal.found > refusal.allowed == getattr(own[refusal.subject], refusal.name)

    @rule(key=st.sampled_from(KEYS), tokens=st.integers(0, 600), cost=st.integers(0, 10**20), of_adapter=st.booleans())
    def ask_in_a_batch(self, key: Subject, tokens: int, cost: int, of_adapter: bool) -> None:
        """A line of a batch counts against budgets only, and is refused by budgets only."""
        own = {subject: self.limits[subject] for subject in (TENANT, key, *([ADAPTER] if of_adapter else []))}
        over = {name for subject in own for name in self.used(subject, tokens, cost)} & BUDGETS
        try:
            reservation = self.limiter.take(own, tokens, self.now, at(self.now), cost=cost, rated=False)
        except LimitBreach as error:
            breached = {error.name}
        else:
            breached = set[str]()
            self.admitted.append(Admitted(self.now, tuple(own), tokens, cost, reservation, rated=False))
        assert breached <= over
        assert bool(breached) == bool(over)

    def is_refused(self, own: dict[Subject, Limits]) -> bool:
        """Return whether a request limit is already reached. The check changes nothing."""
        before = {name: one.stored for name, one in self.limiter.accounts.items()}
        try:
            self.limiter.check_requests(own, self.now, at(self.now))
        except LimitBreach:
            return True
        finally:
            assert {name: one.stored for name, one in self.limiter.accounts.items()}.keys() <= before.keys()
        return False

    @precondition(lambda self: any(one.reservation for one in self.admitted))
    @rule(which=st.integers(0, 99), part=st.floats(0, 1))
    def end(self, which: int, part: float) -> None:
        running = [one for one in self.admitted if one.reservation]
        ended = running[which % len(running)]
        ended.tokens, ended.cost = int(ended.tokens * part), int(ended.cost * part)
        assert ended.reservation is not None
        self.limiter.settle(ended.reservation, ended.tokens, self.now, at(self.now), cost=ended.cost)
        ended.reservation = None

    @invariant()
    def nothing_is_beyond_its_limit(self) -> None:
        for subject in self.limits:
            assert not self.used(subject)

    @rule(most=st.integers(0, 3))
    def tidy(self, most: int) -> None:
        self.limiter.tidy(self.now, at(self.now), most)

    @rule()
    def store(self) -> None:
        """Round-trip the accounts through JSON. They come back equal."""
        kept = json.loads(json.dumps({":".join(name): one.stored for name, one in self.limiter.accounts.items()}))
        accounts = {tuple(name.split(":")): Account.of(stored) for name, stored in kept.items()}
        assert {name: one.stored for name, one in accounts.items()} == {
            name: one.stored for name, one in self.limiter.accounts.items()
        }
        self.limiter = Limiter(accounts)

    @invariant()
    def what_has_nothing_is_forgotten(self) -> None:
        assert len(self.limiter.accounts) <= len(self.limits)

    def used(self, subject: Subject, tokens: int | None = None, cost: int = 0, late_s: float = 0.0) -> list[str]:
        """Return the limits that one more request of this size exceeds, or those exceeded now if ``tokens`` is None."""
        own = [one for one in self.admitted if subject in one.subjects]
        minute = [one for one in own if one.rated and one.came > self.now - SPAN_S - late_s]
        day = [one for one in own if at(one.came).date() == at(self.now).date()]
        month = [one for one in own if at(one.came).month == at(self.now).month]
        more = tokens is not None
        found = {
            "requests_per_minute": len(minute) + more,
            "tokens_per_minute": sum(one.tokens for one in minute) + (tokens or 0),
            "concurrent_requests": sum(one.rated and one.reservation is not None for one in own) + more,
            "tokens_per_request": tokens or 0,
            "tokens_per_day": sum(one.tokens for one in day) + (tokens or 0),
            "tokens_per_month": sum(one.tokens for one in month) + (tokens or 0),
            "cost_per_day": sum(one.cost for one in day) + cost,
            "cost_per_month": sum(one.cost for one in month) + cost,
        }
        limits = self.limits[subject]
        return [name for name, total in found.items() if (limit := getattr(limits, name)) is not None and total > limit]


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 9)), max_size=60), st.integers(0, 9), st.integers(9, 40))
def test_the_announced_wait_is_when_there_is_room(arrivals, amount, limit):
    window, now = MinuteWindow(), 0.0
    for pause, more in arrivals:
        now += pause
        window.add(now, more)
    wait = window.room_in(now, amount, limit)
    if wait > 2 * STEP_S:
        assert window.total + amount > limit
        window.advance(now + wait - 2 * STEP_S)
        assert window.total + amount > limit
    # A sum of floats may fall short of the intended moment by its last bit.
    then = now + wait + 1e-9
    window.advance(then)
    assert window.total + amount <= limit
    window.advance(then + window.empty_in(then) + 1e-9)
    assert window.total == 0


def test_a_window_keeps_no_more_than_its_steps():
    window = MinuteWindow()
    for number in range(100_000):
        window.add(number / 100, 1)
    assert len(window._steps) <= SPAN_S / STEP_S + 1
    assert 6000 <= window.total <= (SPAN_S + STEP_S) * 100 + 1


@pytest.mark.parametrize(
    ("name", "wait"),
    [
        ("requests_per_minute", SPAN_S + STEP_S),
        ("tokens_per_minute", SPAN_S + STEP_S),
        ("concurrent_requests", 1.0),
        ("tokens_per_day", 120.0),
        ("tokens_per_month", 120.0),
    ],
)
def test_who_is_refused_learns_when_to_come_again(name, wait):
    limiter, own = Limiter(), {TENANT: Limits(**{name: 1 if name.endswith(("minute", "requests")) else 10})}
    tokens = own[TENANT].tokens_per_minute or 10
    limiter.take(own, tokens, 0.0, START)
    with pytest.raises(LimitBreach) as refused:
        limiter.take(own, tokens, 0.0, START)
    assert (refused.value.name, refused.value.subject) == (name, TENANT)
    assert refused.value.retry_after_s == pytest.approx(wait)


def test_in_the_middle_of_a_month_its_end_is_days_away():
    limiter, own, noon = Limiter(), {TENANT: Limits(tokens_per_month=10)}, datetime(2026, 2, 10, 12, tzinfo=UTC)
    limiter.take(own, 10, 0.0, noon)
    with pytest.raises(LimitBreach) as refused:
        limiter.take(own, 1, 0.0, noon)
    assert refused.value.retry_after_s == 18.5 * 86400


def test_what_is_larger_than_the_limit_never_fits():
    for limits in (Limits(tokens_per_minute=10), Limits(tokens_per_request=10), Limits(tokens_per_day=10)):
        with pytest.raises(LimitBreach) as refused:
            Limiter().take({TENANT: limits}, 11, 0.0, START)
        assert refused.value.retry_after_s is None


def test_all_limits_are_taken_together_or_none():
    limiter = Limiter()
    own = {TENANT: Limits(requests_per_minute=2), KEYS[0]: Limits(tokens_per_minute=5)}
    for _ in range(3):
        with pytest.raises(LimitBreach, match=r"tokens_per_minute of the key would be 6; the limit is 5[.]$"):
            limiter.take(own, 6, 0.0, START)
    assert not limiter.accounts
    for _ in range(2):
        limiter.take(own, 2, 0.0, START)


def test_the_nearest_limit_is_shown():
    limiter = Limiter()
    own = {TENANT: Limits(requests_per_minute=10, tokens_per_minute=100), KEYS[0]: Limits(requests_per_minute=4)}
    reservation = limiter.take(own, 60, 0.0, START)
    limiter.take(own, 0, 30.0, at(30.0))
    status = limiter.rate_limit_status(own, 30.0, at(30.0))
    assert status.requests is not None
    assert status.tokens is not None
    assert (status.requests.limit, status.requests.remaining) == (4, 2)
    assert status.requests.reset_s == pytest.approx(SPAN_S, abs=0.21)
    assert (status.tokens.limit, status.tokens.remaining) == (100, 40)
    limiter.settle(reservation, 10, 30.0, at(30.0))
    again = limiter.rate_limit_status(own, 30.0, at(30.0)).tokens
    assert again is not None
    assert again.remaining == 90
    nothing = limiter.rate_limit_status({("key", "z"): Limits()}, 30.0, at(30.0))
    assert (nothing.requests, nothing.tokens) == (None, None)


def test_what_was_used_before_counts():
    limiter, own = Limiter(), {TENANT: Limits(2, 100, None, None, 1000, 2000)}
    limiter.restore(TENANT, PeriodTotals(950, 1500, 7, 8), 0.0, START)
    limiter.restore_request(TENANT, 60, -20.0, at(-20.0))
    for tokens, name in ((60, "tokens_per_day"), (45, "tokens_per_minute")):
        with pytest.raises(LimitBreach, match=name):
            limiter.take(own, tokens, 0.0, START)
    limiter.take(own, 40, 0.0, START)
    with pytest.raises(LimitBreach, match="requests_per_minute") as refused:
        limiter.take(own, 0, 0.0, START)
    assert refused.value.retry_after_s == pytest.approx(40, abs=0.21)


def test_who_is_gone_keeps_no_minute() -> None:
    limiter, limits = Limiter(), {TENANT: Limits(), KEYS[0]: Limits()}
    for now in range(50):
        limiter.settle(limiter.take(limits, 5, now, at(now)), 5, now, at(now))
    kept = [len(account.requests.steps) for account in limiter.accounts.values()]
    assert min(kept) > 10
    for _ in range(2):
        limiter.tidy(115.0, at(115.0), 1)
    assert [account.requests.steps for account in limiter.accounts.values()] == [[], []]
    assert {account.tokens_of_month for account in limiter.accounts.values()} == {250}
