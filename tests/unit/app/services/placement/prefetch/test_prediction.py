from collections import defaultdict
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from app.services.placement.prefetch.prediction import Predictor
from tests.support.traces import Trace, unrelated, workflows


@dataclass
class Hits:
    """Number of switches to another version, and of correct guesses by each method."""

    changes: int = 0
    predicted: int = 0
    popular: int = 0
    recent: int = 0


def guess(trace: Trace, *, guesses: int) -> Hits:
    predictor, popularity, hits = Predictor(), Predictor(window_s=-1), Hits()
    recent: dict[str, list[int]] = defaultdict(list)
    for now, tenant, version_id in trace:
        known = recent[tenant]
        if known and known[0] != version_id:
            hits.changes += 1
            hits.predicted += version_id in predictor.likely(tenant, now, most=guesses)
            hits.popular += version_id in popularity.likely(tenant, now, most=guesses)
            hits.recent += version_id in known[1 : 1 + guesses]
        predictor.seen(tenant, version_id, now)
        popularity.seen(tenant, version_id, now)
        recent[tenant] = [version_id, *(one for one in known if one != version_id)]
    return hits


def test_prediction_beats_recency_and_popularity() -> None:
    hits = guess(workflows(seed=7), guesses=2)
    chance = 2 / 11 * hits.changes
    assert hits.predicted > 2 * max(hits.popular, hits.recent, chance)


def test_where_nothing_follows_from_anything_popularity_decides() -> None:
    hits = guess(unrelated(seed=7), guesses=2)
    assert hits.predicted > 1.5 * hits.recent
    assert hits.predicted > 0.9 * hits.popular


def test_a_follower_is_one_within_a_minute() -> None:
    predictor = Predictor()
    for round_ in range(3):
        start = round_ * 1000.0
        predictor.seen("a", 1, start)
        predictor.seen("a", 2, start + 59)
        predictor.seen("a", 3, start + 500)
    predictor.seen("a", 1, 5000.0)
    assert predictor.likely("a", 5000.0, most=1) == [2]
    # Version 1 is too old to predict from. Versions 2 and 3 have equal counts, and 3 was used later.
    assert predictor.likely("a", 5061.0, most=1) == [3]


def test_old_habits_fade() -> None:
    predictor = Predictor()
    for moment in range(50):
        predictor.seen("a", 1, float(moment))
    for moment in range(10):
        predictor.seen("a", 2, 24 * 3600.0 + moment)
    predictor.seen("a", 3, 25 * 3600.0)
    assert predictor.likely("a", 25 * 3600.0, most=2) == [2, 1]


def test_one_tenants_requests_say_nothing_of_anothers() -> None:
    predictor = Predictor()
    for moment in range(10):
        predictor.seen("a", 1, float(moment))
        predictor.seen("b", 2, float(moment))
        predictor.seen("a", 3, float(moment))
    assert predictor.likely("b", 10.0, most=5) == []
    assert predictor.likely("a", 10.0, most=5) == [1]
    assert predictor.likely("unknown", 10.0, most=5) == []


def test_a_tenant_with_many_adapters_displaces_no_other_tenant() -> None:
    predictor = Predictor()
    for moment in range(4):
        predictor.seen("modest", 1 + moment % 2, float(moment))
    before = predictor.likely("modest", 10.0, most=5)
    for number in range(2_000):
        predictor.seen("hostile", 1000 + number, 4.0)
    full = _held(predictor)
    for number in range(10_000):
        predictor.seen("hostile", 10_000 + number, 5.0)
    # Two tenants, each with at most 16 versions and 4 followers of each version.
    assert _held(predictor) == full <= 2 * 16 * (1 + 4)
    assert predictor.likely("modest", 10.0, most=5) == before == [1]


def test_the_longest_quiet_tenants_are_forgotten_first() -> None:
    predictor = Predictor(tenants=2)
    for tenant in ("a", "b", "a", "c"):
        for version_id in (1, 2):
            predictor.seen(tenant, version_id, 0.0)
    assert [predictor.likely(tenant, 0.0, most=1) for tenant in "abc"] == [[1], [], [1]]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.floats(0, 100)), max_size=80), st.integers(1, 9))
def test_a_forgotten_version_leaves_no_trace(requests: list[tuple[str, int, float]], gone: int) -> None:
    predictor, now = Predictor(versions=4, followers=2), 0.0
    for tenant, version_id, passed in requests:
        now += passed
        predictor.seen(tenant, version_id, now)
        likely = predictor.likely(tenant, now, most=9)
        assert len(likely) <= 3
        assert version_id not in likely
        assert len(set(likely)) == len(likely)
    predictor.forget([gone])
    assert str(gone) not in _everything(predictor)
    for tenant in "ab":
        assert gone not in predictor.likely(tenant, now, most=9)
        # The predictor still accepts requests.
        predictor.seen(tenant, 5, now)
        predictor.seen(tenant, 6, now)


def _everything(predictor: Predictor) -> set[str]:
    """Return every version id that the predictor holds anywhere."""
    found: set[object] = set()
    for habits in predictor._tenants.values():
        found |= {habits.last, *habits.versions, *(one for uses in habits.versions.values() for one in uses.next)}
    return set(map(str, found))


def _held(predictor: Predictor) -> int:
    """Return how many version ids the predictor holds, repeats included."""
    uses = [one for habits in predictor._tenants.values() for one in habits.versions.values()]
    return len(uses) + sum(len(one.next) for one in uses)
