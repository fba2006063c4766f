"""Event sequencer: the release order of audit rows, and the audience of each event."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.events import GAP_S, LATE_S, Audience, Event, Sequencer

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    id: int


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ids(rows: list[Row]) -> list[int]:
    return [row.id for row in rows]


def test_what_is_behind_a_missing_id_waits_for_it() -> None:
    sequencer: Sequencer[Row] = Sequencer(4, clock=Clock())
    assert ids(sequencer.release([Row(5), Row(7)])) == [5]
    assert ids(sequencer.release([Row(7)])) == []
    assert ids(sequencer.release([Row(6), Row(7)])) == [6, 7]
    assert sequencer.missing == ()


def test_a_missing_event_id_is_skipped_and_reported_late() -> None:
    clock = Clock()
    sequencer: Sequencer[Row] = Sequencer(0, clock=clock)
    assert ids(sequencer.release([Row(3)])) == []
    clock.now += GAP_S
    assert ids(sequencer.release([Row(3), Row(4)])) == [3, 4]
    assert sequencer.missing == (1, 2)
    assert ids(sequencer.late([Row(2)])) == [2]
    assert ids(sequencer.late([Row(2)])) == []
    clock.now += LATE_S
    assert sequencer.missing == ()


@given(
    order=st.integers(1, 12).flatmap(lambda size: st.permutations(range(1, size + 1))),
    rolled_back=st.sets(st.integers(1, 12)),
    pauses=st.lists(st.floats(0, 3), min_size=12, max_size=12),
)
def test_every_row_goes_out_once_whatever_the_order_of_commits(
    order: list[int], rolled_back: set[int], pauses: list[float]
) -> None:
    clock = Clock()
    sequencer: Sequencer[Row] = Sequencer(0, clock=clock)
    committed: set[int] = set()
    out: list[int] = []
    for identity, pause in [*zip(order, pauses, strict=False), (0, 10.0), (0, 10.0)]:
        committed |= {identity} - rolled_back - {0}
        clock.now += pause
        late = sequencer.late([Row(missing) for missing in sequencer.missing if missing in committed])
        above = sequencer.release([Row(i) for i in sorted(committed) if i > sequencer.position])
        assert ids(above) == sorted(ids(above))
        out += ids(late) + ids(above)
    # Rows behind several gaps need one release for each gap.
    for _ in rolled_back:
        clock.now += GAP_S
        out += ids(sequencer.release([Row(i) for i in sorted(committed) if i > sequencer.position]))
    assert sorted(out) == sorted(committed)


def event(kind: str = "version.publish", tenant: str | None = "pricing", at: datetime = NOW) -> Event:
    return Event(1, at, kind, tenant, "prices@1")


@pytest.mark.parametrize(
    ("audience", "heard"),
    [
        (Audience(), [True, True, True, True]),
        (Audience("pricing", NOW - timedelta(days=1)), [True, False, False, True]),
        (Audience("pricing", NOW - timedelta(days=1), whole=False), [True, False, False, False]),
        (Audience("pricing", NOW + timedelta(seconds=1)), [False, False, False, False]),
    ],
)
def test_who_hears_of_what(audience: Audience, heard: list[bool]) -> None:
    events = [event(), event(tenant="supply-chain"), event(tenant=None), event("key.create")]
    assert [audience.hears(one) for one in events] == heard
