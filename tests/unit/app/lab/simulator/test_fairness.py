"""Jain's fairness index, and the tenants that it covers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lab.simulator.fairness import Fairness, jain


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=20))
def test_jains_index_is_one_for_equals_and_less_for_others(values: list[float]) -> None:
    assert jain([values[0]] * len(values)) == pytest.approx(1.0)
    assert 1 / len(values) - 1e-9 <= jain(values) <= 1 + 1e-9
    assert jain([*values, 0.0]) == pytest.approx(jain(values) * len(values) / (len(values) + 1))


def test_only_backlogged_tenants_are_compared() -> None:
    fairness = Fairness(lambda tenant: [1.0, 2.0, 1.0][tenant], span_s=10.0, backlog=1)
    for tenant in (0, 1, 2):
        fairness.waits(tenant)
    fairness.passed(10.0)
    fairness.waits_no_more(2)
    fairness.waits(2)
    fairness.served(0, 10, 5)
    fairness.served(1, 20, 10)
    fairness.served(2, 1_000, 0)
    fairness.passed(15.0)
    assert fairness.indexes == []
    fairness.passed(20.0)
    assert fairness.indexes == [pytest.approx(1.0)]
    fairness.served(0, 10, 0)
    fairness.passed(30.0)
    assert fairness.indexes[1] == pytest.approx(1 / 3)


def test_a_tenant_with_little_waiting_is_not_compared() -> None:
    fairness = Fairness(lambda _: 1.0, span_s=10.0, backlog=2)
    for tenant in (0, 0, 1, 1, 2):
        fairness.waits(tenant)
    fairness.passed(10.0)
    fairness.served(0, 5, 0)
    fairness.served(1, 5, 0)
    fairness.passed(20.0)
    assert fairness.indexes == [1.0]
    fairness.waits_no_more(1)
    fairness.passed(30.0)
    assert fairness.indexes == [1.0]
