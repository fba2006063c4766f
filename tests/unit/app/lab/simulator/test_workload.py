"""Simulated workload: distributions of arrivals, and repeatability by seed."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from app.lab.simulator.workload import BASE, Workload


def test_the_same_seed_gives_the_same_arrivals() -> None:
    first, again, other = (
        list(Workload(2_000, seed=seed, rate=50.0, adapters=500, tenants=50).arrivals()) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert len(first) == 2_000
    assert all(one.at <= two.at for one, two in pairwise(first))


def test_popularity_and_gaps_follow_their_laws() -> None:
    workload = Workload(200_000, seed=3, rate=100.0, adapters=200, alpha=0.3, base=0.0, hostile=0.0, collector=0.0)
    arrivals = list(workload.arrivals())
    ordinary = int((workload.owners[1:] < workload.tenants).sum())
    asked = Counter(arrival.version_id for arrival in arrivals)
    for version in (1, 2, 10):
        share = (version / ordinary) ** 0.3 - ((version - 1) / ordinary) ** 0.3
        assert asked[version] / len(arrivals) == pytest.approx(share, rel=0.1)
    gaps = np.diff([arrival.at for arrival in arrivals])
    assert gaps.mean() == pytest.approx(1 / 100, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(4.0, rel=0.1)


def test_every_adapter_is_asked_for_by_its_owner_only() -> None:
    workload = Workload(20_000, seed=1, rate=50.0, adapters=1_000, tenants=100)
    for arrival in workload.arrivals():
        if arrival.version_id != BASE:
            assert workload.owners[arrival.version_id] == arrival.tenant


def test_the_hostile_tenant_and_the_collector_are_as_named() -> None:
    workload = Workload(100_000, seed=1, rate=50.0, adapters=10_000, tenants=1_000)
    assert (workload.owners == workload.collecting_tenant).sum() == 500
    assert workload.rates[workload.hostile_tenant] == pytest.approx(10 * workload.rates[:1_000].max())
    came = Counter(arrival.tenant for arrival in workload.arrivals())
    ordinary = [count for tenant, count in came.items() if tenant < 1_000]
    assert came[workload.hostile_tenant] > 5 * max(ordinary)
    asked = {arrival.version_id for arrival in workload.arrivals() if arrival.tenant == workload.collecting_tenant}
    assert len(asked) > 450


def test_lengths_patience_and_deadlines_are_those_asked_for() -> None:
    workload = Workload(
        50_000, seed=1, rate=50.0, adapters=100, tenants=5, lengths=(8, 64), impatient=0.02, urgent=0.05
    )
    arrivals = list(workload.arrivals())
    for tokens in ([one.prompt_tokens for one in arrivals], [one.output_tokens for one in arrivals]):
        assert (min(tokens), max(tokens)) == (8, 63)
    impatient = [one.patience_s for one in arrivals if one.patience_s < math.inf]
    assert len(impatient) / len(arrivals) == pytest.approx(0.02, rel=0.2)
    assert sum(one.deadline_s == 6.0 for one in arrivals) / len(arrivals) == pytest.approx(0.05, rel=0.2)
    assert sum(one.version_id == BASE for one in arrivals) / len(arrivals) == pytest.approx(0.1, rel=0.2)


def test_numbers_that_make_no_workload_are_refused() -> None:
    with pytest.raises(ValueError, match=r"has 10 requests, 0 tenants and 100 adapters, but needs at least 1, 1 and 4"):
        Workload(10, seed=1, rate=1.0, adapters=100, tenants=0)
