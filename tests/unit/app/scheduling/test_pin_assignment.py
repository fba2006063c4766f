"""Pins of a fleet: which replica pins which version, and when an absence counts."""

from collections import Counter
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.pin_assignment import ABSENT_S, Members, SeenReplica, assigned, pin_capacity
from app.scheduling.rendezvous import ranking

NOW = datetime(2026, 3, 1, tzinfo=UTC)
FLEET = (("a", 4), ("b", 4), ("c", 4))
fleets = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 6), min_size=1).map(
    lambda n: tuple(sorted(n.items()))
)
digests = st.lists(st.text("0123456789abcdef", min_size=4, max_size=4), unique=True, max_size=20)


def row(node: str, seen_at: datetime = NOW, *, slots: int = 4, absent_s: float = 0.0) -> SeenReplica:
    return SeenReplica(node, slots, seen_at, absent_s)


@given(fleets, digests, st.integers(1, 3))
def test_replicas_agree_and_keep_one_slot_unpinned(fleet, pinned, copies) -> None:
    pins = list(enumerate(pinned))
    shares = {node: assigned(node, pins, fleet, copies=copies) for node, _ in fleet}
    for node, slots in fleet:
        assert len(shares[node]) <= slots - 1
    held = Counter(version for share in shares.values() for version in share)
    assert all(count <= copies for count in held.values())
    if len(pins) <= pin_capacity(fleet, copies=1):
        assert set(held) == {version for version, _ in pins}


@given(st.text("0123456789abcdef", min_size=8, max_size=8), st.integers(1, 3))
def test_a_pin_is_on_the_first_of_its_ranking(digest, copies) -> None:
    first = {node for node, _ in FLEET if assigned(node, [(7, digest)], FLEET, copies=copies)}
    assert first == set(ranking(digest, FLEET)[:copies])


def test_a_full_replica_passes_later_pins_on() -> None:
    fleet = (("a", 2), ("b", 2))
    pins = [(number, f"{number:04x}") for number in range(2)]
    assert {len(assigned(node, pins, fleet, copies=1)) for node, _ in fleet} == {1}
    assert pin_capacity(fleet, copies=1) == 2
    assert pin_capacity(fleet, copies=2) == 1
    assert pin_capacity((("a", 5), ("b", 2)), copies=2) == 1
    assert pin_capacity((), copies=1) == 0


def test_a_short_absence_moves_nothing() -> None:
    members, now = Members(), 0.0
    assert members.observe([row("a"), row("b")], now) == (("a", 4), ("b", 4))
    while now < ABSENT_S - 2:
        now += 1
        beat = NOW + timedelta(seconds=now)
        assert members.observe([row("a", beat), row("b", absent_s=now)], now) == (("a", 4), ("b", 4))
    for seconds in range(3):
        gone = members.observe([row("a", NOW + timedelta(seconds=now + seconds)), row("b")], now + seconds)
    assert gone == (("a", 4),)
    back = members.observe([row("a", beat), row("b", NOW + timedelta(seconds=1))], now + 3)
    assert back == (("a", 4), ("b", 4))


def test_an_outage_of_the_registry_moves_nothing() -> None:
    members = Members()
    members.observe([row("a"), row("b")], 0.0)
    later = 10 * ABSENT_S
    assert members.observe([row("a", absent_s=later), row("b", absent_s=later)], later) == (("a", 4), ("b", 4))


def test_a_replica_that_starts_ignores_old_rows() -> None:
    assert Members().observe([row("a", absent_s=ABSENT_S + 1), row("b", absent_s=ABSENT_S - 1)], 5.0) == (("b", 4),)
