"""Shares of tenants that always have something waiting, and what a greedy one changes for the others."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.admission import Admission
from app.scheduling.admission_request import Bounds
from tests.app.scheduling.engine import Engine, staged

BOUNDS = Bounds(requests=10**6, tenant_requests=10**6, seconds=1e9)


def jain(shares: list[float]) -> float:
    """Jain's index of fairness: 1 when all are equal."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def backlogged(
    lengths: dict[str, tuple[int, int]],
    *,
    weights: dict[str, float] | None = None,
    promised: int = 4096,
    slots: int | None = None,
) -> Engine:
    """Every tenant always has 20 requests that wait or run, of its own prompt and output lengths.

    A request runs as long as it has output, and its ticket promises 4,096 tokens. With slots every tenant has an
    adapter of its own, without it uses the base model.
    """
    names = list(lengths)
    admission = Admission(slots=slots or 1, window=16, bounds=BOUNDS)
    staged(admission, range(1, len(names) + 1))
    engine = Engine(
        admission,
        seconds=lambda ticket: 0.01 * lengths[ticket.tenant][1],
        output_tokens=lambda ticket: lengths[ticket.tenant][1],
    )

    def ask(name: str) -> None:
        version = 1 + names.index(name) if slots else None
        weight = (weights or {}).get(name, 1.0)
        engine.enter(name, version, weight=weight, prompt=lengths[name][0], output=promised)

    engine.ended = lambda ticket: ask(ticket.tenant)
    for name in names * 20:
        ask(name)
    return engine


LENGTHS = {"chat": (20, 60), "summaries": (400, 20), "essays": (10, 300), "labels": (50, 1), "code": (200, 200)}


@pytest.mark.parametrize("promised", [300, 100_000])
@pytest.mark.parametrize("slots", [None, 5])
def test_backlogged_tenants_get_equal_service_whatever_their_requests_look_like(
    promised: int, slots: int | None
) -> None:
    engine = backlogged(LENGTHS, promised=promised, slots=slots)
    engine.run(300.0)
    assert jain([engine.served[name] for name in LENGTHS]) >= 0.98


def test_weights_are_honoured() -> None:
    weights = {"one": 1.0, "two": 2.0, "four": 4.0}
    engine = backlogged({"one": (50, 40), "two": (20, 60), "four": (100, 30)}, weights=weights)
    engine.run(300.0)
    total = sum(engine.served.values())
    for name, weight in weights.items():
        assert engine.served[name] / total == pytest.approx(weight / 7, rel=0.05)


def test_tenants_with_more_adapters_than_slots_share_the_slots() -> None:
    """Ten backlogged tenants on four slots: visits go round, and so does service."""
    lengths = {f"tenant {number}": (10 + number, 50) for number in range(10)}
    engine = backlogged(lengths, slots=4)
    engine.run(600.0)
    assert jain([engine.served[name] for name in lengths]) >= 0.98


def poisson(rates: dict[str, float], seed: int, *, hostile_weight: float = 1.0) -> Engine:
    """Requests of 1 s in the mean, at the given rates per second, for 60 s on a window of 64."""
    engine = Engine(Admission(slots=1, window=64, bounds=BOUNDS), seconds=lambda ticket: ticket.output_tokens / 55)

    def arrivals(name: str, rate: float, chance: random.Random) -> None:
        def arrive() -> None:
            weight = hostile_weight if name == "hostile" else 1.0
            engine.enter(name, weight=weight, prompt=chance.randint(10, 100), output=chance.randint(10, 100))
            engine.at(engine.now + chance.expovariate(rate), arrive)

        engine.at(chance.expovariate(rate), arrive)

    for name, rate in rates.items():
        arrivals(name, rate, random.Random(f"{name} {seed}"))
    engine.run(60.0)
    return engine


def test_who_sends_ten_times_its_share_makes_few_others_wait() -> None:
    """Eight tenants at 80% of what the engine can do, one of them tenfold: the window is full, and few others see it.

    Without places that are only lent all would wait. To come last always would change nothing for the others.
    """
    others = [f"tenant {number}" for number in range(7)]
    waits: dict[float, list[float]] = {1.0: [], 1e-9: []}
    for seed in range(6):
        for weight, found in waits.items():
            engine = poisson({"hostile": 64.0, **dict.fromkeys(others, 6.4)}, seed, hostile_weight=weight)
            assert len(engine.waits("hostile")) > 1.5 * len(engine.waits("tenant 1"))
            found += [wait for name in others for wait in engine.waits(name)]
    fair, strict = (sorted(found) for found in waits.values())
    assert sum(wait > 0 for wait in fair) / len(fair) <= 0.2
    assert fair[int(0.99 * len(fair))] <= 1.1 * strict[int(0.99 * len(strict))]


@given(seed=st.integers(0, 1000), flood=st.integers(1, 200))
def test_a_flood_changes_nothing_in_the_order_of_the_others(seed: int, flood: int) -> None:
    """The others are admitted in the same order among themselves, however much one tenant sends first."""
    orders = []
    for hostile in (0, flood):
        chance = random.Random(seed)
        # Without firsts: a flood has one too, beside the places of the others, and the times change with it.
        engine = Engine(Admission(slots=1, window=2, aside=0, bounds=BOUNDS))
        engine.enter("first", output=20, sequences=2)
        for _ in range(hostile):
            engine.enter("hostile")
        sent = [engine.enter(chance.choice("abc"), prompt=chance.randint(1, 50)).request_id for _ in range(20)]
        engine.run()
        orders.append([sent.index(ticket.request_id) for ticket in engine.order if ticket.tenant in "abc"])
    assert orders[0] == orders[1]
