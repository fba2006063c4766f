"""Shares of backlogged tenants, and the effect of a greedy tenant on the others."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.admission import Admission
from app.scheduling.admission_request import Bounds
from tests.support.scheduling.engine import Engine, staged

BOUNDS = Bounds(requests=10**6, tenant_requests=10**6, seconds=1e9)


def jain(shares: list[float]) -> float:
    """Jain's fairness index: 1 if all shares are equal."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def backlogged(
    lengths: dict[str, tuple[int, int]],
    *,
    weights: dict[str, float] | None = None,
    promised: int = 4096,
    slots: int | None = None,
) -> Engine:
    """Keep every tenant at 20 waiting or running requests with its own prompt and output lengths.

    The duration of a request is proportional to its output, and it declares 4,096 tokens. With slots, every
    tenant has its own adapter; without, all use the base model.
    """
    names = list(lengths)
    admission = Admission(slots=slots or 1, window=16, bounds=BOUNDS)
    staged(admission, range(1, len(names) + 1))
    engine = Engine(
        admission,
        seconds=lambda request: 0.01 * lengths[request.tenant][1],
        output_tokens=lambda request: lengths[request.tenant][1],
    )

    def ask(name: str) -> None:
        version = 1 + names.index(name) if slots else None
        weight = (weights or {}).get(name, 1.0)
        engine.enter(name, version, weight=weight, prompt=lengths[name][0], output=promised)

    engine.ended = lambda request: ask(request.tenant)
    for name in names * 20:
        ask(name)
    return engine


LENGTHS = {"chat": (20, 60), "summaries": (400, 20), "essays": (10, 300), "labels": (50, 1), "code": (200, 200)}


@pytest.mark.parametrize("promised", [300, 100_000])
@pytest.mark.parametrize("slots", [None, 5])
def test_backlogged_tenants_share_equally_for_any_requests(promised: int, slots: int | None) -> None:
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
    """Ten backlogged tenants on four slots: slot grants rotate, and service stays equal."""
    lengths = {f"tenant {number}": (10 + number, 50) for number in range(10)}
    engine = backlogged(lengths, slots=4)
    engine.run(600.0)
    assert jain([engine.served[name] for name in lengths]) >= 0.98


def poisson(rates: dict[str, float], seed: int, *, hostile_weight: float = 1.0) -> Engine:
    """Run Poisson arrivals at these rates per second for 60 s: requests of 1 s on average, a window of 64."""
    engine = Engine(Admission(slots=1, window=64, bounds=BOUNDS), seconds=lambda request: request.output_tokens / 55)

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
    """Eight tenants would use 80% of the capacity, but one of them sends ten times its share.

    The window is full, yet few requests of the others wait. Without preemption all would wait. The others wait hardly
    longer than if the hostile tenant always came last.
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
    """The others are admitted in the same relative order, regardless of the size of the flood before them."""
    orders = []
    for hostile in (0, flood):
        chance = random.Random(seed)
        # Without firsts (aside=0): the flood would have one in addition to the others' places, which shifts the times.
        engine = Engine(Admission(slots=1, window=2, aside=0, bounds=BOUNDS))
        engine.enter("first", output=20, sequences=2)
        for _ in range(hostile):
            engine.enter("hostile")
        sent = [engine.enter(chance.choice("abc"), prompt=chance.randint(1, 50)).request_id for _ in range(20)]
        engine.run()
        orders.append([sent.index(request.request_id) for request in engine.order if request.tenant in "abc"])
    assert orders[0] == orders[1]
