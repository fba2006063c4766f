"""Traffic split of an alias."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.domain.traffic_split import choose, sticky_point

weights = st.lists(st.integers(1, 10_000), min_size=1, max_size=10)


@given(weights, st.floats(0, 1, exclude_max=True))
def test_one_of_the_targets_is_always_chosen(shares: list[int], point: float) -> None:
    assert choose(list(enumerate(shares)), point) in range(len(shares))


def test_each_target_has_its_share_of_the_line() -> None:
    targets = [("new", 5), ("old", 95)]
    chosen = Counter(choose(targets, step / 10_000) for step in range(10_000))
    assert chosen == {"new": 500, "old": 9500}


def test_users_are_spread_uniformly() -> None:
    points = sorted(sticky_point("pricing/quotes:default", f"user-{number}") for number in range(20_000))
    # The Kolmogorov-Smirnov distance to the uniform distribution. It exceeds 0.0138 once in a thousand samples.
    distance = max(abs(point - rank / len(points)) for rank, point in enumerate(points))
    assert distance < 0.0138


@given(st.text(), st.text())
def test_a_user_stays_and_the_point_is_a_fraction(alias: str, user: str) -> None:
    assert sticky_point(alias, user) == sticky_point(alias, user)
    assert 0 <= sticky_point(alias, user) < 1


def test_aliases_are_independent_of_each_other() -> None:
    users = [f"user-{number}" for number in range(4000)]
    both = sum(sticky_point("a", user) < 0.5 and sticky_point("b", user) < 0.5 for user in users)
    assert 900 < both < 1100  # 1000 expected, standard deviation 27
    assert sticky_point("a", "bc") != sticky_point("ab", "c")


@given(st.text(min_size=1), st.integers(1, 50), st.integers(0, 50))
def test_who_has_the_new_version_keeps_it_while_its_share_grows(user: str, share: int, growth: int) -> None:
    point = sticky_point("pricing/quotes:default", user)
    before = choose([("new", share), ("old", 100 - share)], point)
    after = choose([("new", share + growth), ("old", max(100 - share - growth, 1))], point)
    assert (before, after) != ("new", "old")


def test_callers_without_a_name_are_spread_too() -> None:
    chance = random.Random(7)
    chosen = Counter(choose([("new", 50), ("old", 50)], chance.random()) for _ in range(2000))
    assert min(chosen["new"], chosen["old"]) > 850
