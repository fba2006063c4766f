"""Rendezvous hashing: shares by weight, and joins and leaves that move few versions."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.rendezvous import Fleet, ranking

VERSIONS = [f"{number:064x}" for number in range(4_000)]

fleets = st.dictionaries(st.text(min_size=1, max_size=8), st.integers(1, 256), min_size=1, max_size=12)


def fleet_of(slots: dict[str, int]) -> Fleet:
    return tuple(sorted(slots.items()))


def homes(fleet: Fleet) -> dict[str, str]:
    return {version: ranking(version, fleet)[0] for version in VERSIONS}


@given(fleets, st.text(), st.data())
def test_a_leaving_replica_keeps_the_order_of_the_others(slots, version, data) -> None:
    gone = data.draw(st.sampled_from(sorted(slots)))
    rest = {node_id: weight for node_id, weight in slots.items() if node_id != gone}
    before = ranking(version, fleet_of(slots))
    assert ranking(version, fleet_of(rest)) == tuple(node_id for node_id in before if node_id != gone)


@given(fleets, st.text())
def test_every_replica_with_weight_has_one_place(slots, version) -> None:
    idle = {f"idle {node_id}": 0 for node_id in slots}
    assert ranking(version, fleet_of(slots | idle)) == ranking(version, fleet_of(slots))
    assert sorted(ranking(version, fleet_of(slots))) == sorted(slots)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 15])
def test_a_joining_replica_takes_its_share_and_no_more(count: int) -> None:
    before = fleet_of({f"replica-{number}": 16 for number in range(count)})
    after = fleet_of(dict(before) | {"joined": 16})
    old, new = homes(before), homes(after)
    moved = [version for version in VERSIONS if old[version] != new[version]]
    assert {new[version] for version in moved} == {"joined"}
    share = 1 / (count + 1)
    # Four standard deviations of the number of versions that one replica gets.
    assert abs(len(moved) / len(VERSIONS) - share) < 4 * (share * (1 - share) / len(VERSIONS)) ** 0.5


def test_shares_are_proportional_to_weights() -> None:
    weights = {"small": 4, "middle": 8, "large": 20}
    found = Counter(homes(fleet_of(weights)).values())
    for node_id, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(found[node_id] / len(VERSIONS) - share) < 4 * (share * (1 - share) / len(VERSIONS)) ** 0.5


def test_rankings_do_not_change_between_releases() -> None:
    """A change would move all adapters of a fleet at once."""
    fleet = fleet_of({"a": 1, "b": 2, "c": 4, "d": 4})
    found = ["".join(ranking(version, fleet)) for version in VERSIONS[:5]]
    assert found == ["dcba", "cbda", "acdb", "cbda", "cabd"]
