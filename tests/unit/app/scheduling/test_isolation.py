"""Isolation: limits on the effect of one tenant's requests on the others."""

import pickle
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from app.scheduling.admission import Admission
from app.scheduling.admission_request import AdmissionRequest, Bounds, Refused
from app.scheduling.token_counters import CREDIT_S
from tests.support.scheduling.engine import Engine, staged

BOUNDS = Bounds(requests=10**6, tenant_requests=10**6, seconds=1e9)


def always(engine: Engine, *tenants: str, each: int = 20, promised: int = 10) -> None:
    """Keep each of these tenants at ``each`` base-model requests with ``promised`` expected output tokens."""
    before = engine.ended

    def again(request: AdmissionRequest) -> None:
        before(request)
        if request.tenant in tenants:
            engine.enter(request.tenant, output=promised)

    engine.ended = again
    for tenant in tenants * each:
        engine.enter(tenant, output=promised)


def share(engine: Engine, tenant: str) -> float:
    return engine.served[tenant] / engine.served.total()


def test_many_tiny_requests_get_no_more_than_a_share() -> None:
    engine = Engine(Admission(slots=1, window=8, bounds=BOUNDS), seconds=lambda request: 0.1 * request.output_tokens)
    always(engine, "a", "b")
    for _ in range(5000):
        engine.enter("tiny", prompt=1, output=1)
    engine.run(60.0)
    assert share(engine, "tiny") <= 0.35


def test_a_huge_promise_hurts_only_who_makes_it_and_only_once() -> None:
    """A tenant asks for 100,000 tokens and uses 10, like the others. From its second round on it gets its share."""
    engine = Engine(Admission(slots=1, window=8, bounds=BOUNDS), output_tokens=lambda request: 10)
    always(engine, "huge", promised=100_000)
    engine.run(10.0)
    always(engine, "a", "b")
    engine.served.clear()
    engine.run(200.0)
    assert all(0.3 <= share(engine, tenant) <= 0.37 for tenant in ("huge", "a", "b"))


def test_refunds_buy_no_credit_over_who_came_meanwhile() -> None:
    """Another tenant arrives while a huge estimate is charged. After the refund both get equal shares."""
    engine = Engine(Admission(slots=1, window=1, bounds=BOUNDS), output_tokens=lambda request: 10)
    engine.enter("huge", output=1_000_000)
    always(engine, "victim", "huge")
    engine.run(200.0)
    assert 0.45 <= share(engine, "victim") <= 0.55


def test_an_endless_stream_saves_no_credit() -> None:
    """A tenant runs one long request for 100 s and then sends many. It gets its share, not everything."""
    engine = Engine(
        Admission(slots=1, window=8, bounds=BOUNDS),
        seconds=lambda request: 1000.0 if request.prompts == (7,) else 1.0,
    )
    engine.enter("saver", prompt=7, output=1)
    always(engine, "honest")
    engine.run(100.0)
    engine.served.clear()
    always(engine, "saver")
    engine.run(150.0)
    assert 0.45 <= share(engine, "honest") <= 0.55


@pytest.mark.parametrize("count", [1, 4, 16])
def test_arriving_tenants_delay_others_by_their_credit_at_most(count: int) -> None:
    """Each newcomer may catch up on two credit periods of service, and on one second for the requests in flight.

    After that all get equal shares.
    """
    engine = Engine(Admission(slots=1, window=8, bounds=BOUNDS))
    always(engine, "alone")
    engine.run(20.0)
    began = engine.now
    always(engine, *(f"tenant {number}" for number in range(count)))
    credit_s = count * (2 * CREDIT_S + 1.0)
    engine.run(began + credit_s + 10.0)
    starts = [engine.started[request.request_id] for request in engine.order if request.tenant == "alone"]
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert max(gaps) <= credit_s
    engine.served.clear()
    engine.run(engine.now + 200.0)
    assert share(engine, "alone") == pytest.approx(1 / (1 + count), rel=0.05)


@pytest.mark.parametrize("each", [1, 8])
def test_coming_and_going_earns_nothing(each: int) -> None:
    """A tenant that drains its queue after each burst, to be lifted on its return, gets no more than its share."""
    engine = Engine(Admission(slots=1, window=4, bounds=BOUNDS))
    always(engine, "honest")

    def burst() -> None:
        for _ in range(each):
            engine.enter("cycler")
        engine.at(engine.now + 0.5, burst)

    burst()
    engine.run(100.0)
    assert share(engine, "cycler") <= 0.53


def test_a_storm_of_cancelled_requests_changes_nothing() -> None:
    """The same traffic with and without 10,000 requests that are cancelled at once."""
    orders = []
    for storm in (0, 100):
        # Without firsts (aside=0): otherwise each cancelled request would run at once instead of waiting.
        engine = Engine(Admission(slots=2, window=4, aside=0, bounds=BOUNDS))
        staged(engine.admission, range(1, 6))
        engine.enter("c", sequences=4)
        for number in range(100):
            engine.enter("ab"[number % 2], number % 6 or None, prompt=number)
            for cancelled in range(storm):
                # It would go before the others if its prompt were shorter.
                request = AdmissionRequest(f"cancelled {cancelled}", "storm", 1.0, cancelled % 6 or None, (5000,), 5)
                assert engine.admission.enter(request, engine.now) == ()
                assert engine.admission.leave(request.request_id, engine.now) == ()
        engine.run()
        orders.append([(request.tenant, request.prompts) for request in engine.order])
    assert len(orders[0]) == 104
    assert orders[0] == orders[1]


def slot_turns(hostile: int, *, seconds: float) -> Counter[str]:
    """Count slot grants by tenant: three tenants with one adapter each, and one with many.

    Each adapter always has a request.
    """
    admission = Admission(slots=2, window=1000, bounds=BOUNDS, max_age_s=2.0)
    staged(admission, range(1, 4 + hostile))
    engine = Engine(admission, seconds=lambda request: 0.5)
    turns: Counter[str] = Counter()

    def ended(request: AdmissionRequest) -> None:
        turns[request.tenant] += 1
        engine.enter(request.tenant, request.version_id)

    engine.ended = ended
    for version in range(4, 4 + hostile):
        engine.enter("hostile", version)
    for version in (1, 2, 3):
        engine.enter(f"tenant {version}", version)
    engine.run(seconds)
    return turns


def test_many_adapters_get_only_their_promised_turns() -> None:
    """In FIFO order, a tenant with 300 of 303 adapters would get 99% of the slot grants.

    The wait bound promises each of its adapters a grant every rounds x (2 s + 0.5 s). That is a fifth of all grants;
    fair order decides the rest.
    """
    turns = slot_turns(300, seconds=600.0)
    assert turns["hostile"] / turns.total() <= 0.35
    assert min(turns[f"tenant {version}"] for version in (1, 2, 3)) / turns.total() >= 0.2


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_crowds_delay_no_other_adapter_beyond_its_bound(slots: int) -> None:
    """Each adapter of one tenant always has a longer backlog than the window, so all of them keep filling."""
    admission = staged(Admission(slots=slots, window=8, max_age_s=2.0, bounds=BOUNDS), range(1, 10))
    engine = Engine(admission, seconds=lambda _: 0.4)
    engine.ended = lambda request: engine.enter("hostile", request.version_id) if request.tenant == "hostile" else None
    for number in range(8 * 30):
        engine.enter("hostile", 1 + number % 8)
    for number in range(20):
        engine.at(10.0 + 7.3 * number, lambda: engine.enter("modest", 9))
    engine.run(170.0)
    rounds = -(-9 // slots)  # at worst all other versions wait before it
    assert len(engine.waits("modest")) == 20
    assert max(engine.waits("modest")) <= rounds * (2.0 + 0.4)


def test_a_full_queue_of_one_tenant_refuses_only_that_tenant() -> None:
    admission = Admission(slots=1, window=1, bounds=Bounds(requests=100, tenant_requests=10))
    enter: Callable[[str, int], tuple[str, ...]] = lambda tenant, number: admission.enter(  # noqa: E731
        AdmissionRequest(f"{tenant} {number}", tenant, 1.0, None, (1,), 1), 0.0
    )
    for number in range(11):
        enter("greedy", number)
    with pytest.raises(Refused) as refused:
        enter("greedy", 11)
    assert refused.value.scope == "tenant"
    assert enter("modest", 0) == ()


def test_nothing_is_kept_of_tenants_and_versions_that_are_gone() -> None:
    """Many tenants and versions come and go while one stays. Memory does not grow with their number."""
    sizes = []
    for count in (1_000, 20_000):
        admission = Admission(slots=2, window=4, bounds=BOUNDS)
        staged(admission, range(1, 4))
        engine = Engine(admission)
        always(engine, "stays", each=3)
        for number in range(count):
            engine.enter(f"tenant {number}", number % 4 or None)
            engine.run(engine.now + 0.5)
        engine.ended = lambda request: None
        engine.run()
        assert admission.snapshot(engine.now).tenants == ()
        sizes.append(len(pickle.dumps(admission)))
    assert sizes[1] < 2 * sizes[0]
