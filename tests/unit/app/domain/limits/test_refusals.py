"""Refusal cache: a cached refusal always matches the decision of the accounts."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.limits.limiter import LimitBreach, Limiter, RateLimitStatus, Reservation, Subject
from app.domain.limits.limits import Limits
from app.services.limits.accounts import Decision, decide
from app.services.limits.refusal_cache import RefusalCache

START = datetime(2026, 11, 30, 23, 58, tzinfo=UTC)
TENANT: Subject = ("tenant", "7")
KEYS: tuple[Subject, ...] = (("key", "a"), ("key", "b"))

steps = st.tuples(
    st.floats(0, 30),
    st.sampled_from(KEYS),
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from([3, 3, 3, 3, 5]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=80), st.floats(0, 0.05))
def test_cached_refusals_never_outlast_the_accounts(taken, latency):
    limiter, now, running = Limiter(), 0.0, list[Reservation]()
    refusals = RefusalCache(lambda: now)
    for pause, key, tokens, settled, most in taken:
        now += pause
        if settled and running:
            limiter.settle(running.pop(), 0, now, START + timedelta(seconds=now))
        limits = {TENANT: Limits(requests_per_minute=most, tokens_per_minute=40), key: Limits(requests_per_minute=2)}
        at = START + timedelta(seconds=now + latency)
        known = refusals.find(limits)
        # A refused request reserves nothing, so this extra check changes nothing.
        decision = decide(limiter, limits, tokens, 0, now + latency, at)
        now += latency
        if known is None:
            refusals.note(decision, now - latency)
        else:
            assert isinstance(decision.outcome, LimitBreach)
            assert isinstance(known.outcome, LimitBreach)
            assert 0 < (known.outcome.retry_after_s or 0.0) <= 60.2
        if isinstance(decision.outcome, Reservation):
            running.append(decision.outcome)


def test_what_may_be_given_back_is_not_remembered():
    refusals = RefusalCache(lambda: 0.0)
    for name in ("tokens_per_minute", "concurrent_requests", "tokens_per_day", "cost_per_month"):
        refusals.note(Decision(LimitBreach(TENANT, name, 2, 1, 30.0), RateLimitStatus(None, None)), 0.0)
    refusals.note(Decision(LimitBreach(TENANT, "requests_per_minute", 1, 0, None), RateLimitStatus(None, None)), 0.0)
    assert refusals.find({TENANT: Limits(1, 1, 1, 1, 1, 1, 1, 1)}) is None


def test_what_holds_no_more_is_dropped():
    now = 0.0
    refusals = RefusalCache(lambda: now)
    refusals.note(Decision(LimitBreach(TENANT, "requests_per_minute", 2, 1, 30.0), RateLimitStatus(None, None)), 0.0)
    limits = {TENANT: Limits(requests_per_minute=1)}
    assert refusals.find(limits)
    now = 29.9
    assert refusals.find(limits) is None
