"""Slot-seconds: the shares of a tenant's requests add up to its slot usage, even if requests overlap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.residency.slot_time import SlotTime


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_who_is_alone_has_it_all_and_who_shares_has_a_part() -> None:
    time = Time()
    slots = SlotTime(time)
    first = slots.begin("pricing", 1)
    time.now = 2
    second, other = slots.begin("pricing", 1), slots.begin("pricing", 2)
    time.now = 6
    assert first() == 2 + 4 / 2
    time.now = 7
    assert second() == 4 / 2 + 1
    assert other() == 5


def test_a_slot_that_nobody_uses_is_nobodys() -> None:
    time = Time()
    slots = SlotTime(time)
    assert slots.begin("pricing", 1)() == 0
    time.now = 100
    end = slots.begin("pricing", 1)
    time.now = 101
    assert end() == 1


def test_of_a_shared_adapter_nobody_hears_who_else_uses_it() -> None:
    time = Time()
    slots = SlotTime(time)
    ends = [slots.begin(tenant, 1) for tenant in ("owner", "guest")]
    time.now = 3
    assert [end() for end in ends] == [3, 3]


#: Version, start and duration of each request.
REQUESTS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50), st.integers(0, 20)), max_size=20)


@given(REQUESTS)
def test_the_sum_is_the_time_in_which_slots_were_used(requests: list[tuple[int, int, int]]) -> None:
    time = Time()
    slots = SlotTime(time)
    changes = sorted(
        [(begin, 0, number) for number, (_, begin, _) in enumerate(requests)]
        + [(begin + lasts, 1, number) for number, (_, begin, lasts) in enumerate(requests)]
    )
    ends, told = {}, []
    for moment, is_end, number in changes:
        time.now = float(moment)
        if is_end:
            told.append(ends.pop(number)())
        else:
            ends[number] = slots.begin("pricing", requests[number][0])
    used = {(version, second) for version, begin, lasts in requests for second in range(begin, begin + lasts)}
    assert sum(told) == pytest.approx(len(used))
    assert all(seconds >= -1e-9 for seconds in told)
