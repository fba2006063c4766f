"""CPU kernel benchmark: every number of slots is measured, and the cost of a slot is the slope."""

import pytest

from app.lab.bench.cpu_kernel import Price, measure


def test_every_number_of_slots_is_measured():
    price = measure(4, 2, slots=(2, 8), rounds=1)
    assert (price.tokens, price.adapters) == (4, 2)
    assert price.seconds.keys() == {2, 8}
    assert all(seconds > 0 for seconds in price.seconds.values())


def test_a_slots_price_is_the_slope():
    assert Price(1, 1, {10: 1.0, 30: 2.0, 20: 9.0}).idle_slot_s == pytest.approx(0.05)
