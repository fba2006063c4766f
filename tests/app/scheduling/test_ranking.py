import pickle

from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.ranking import Numbered, Ranking

CHANGES = st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 5)), max_size=200)


@given(CHANGES)
def test_it_orders_what_a_dict_holds(changes: list[tuple[int, int | None]]) -> None:
    ranking: Ranking[int, int] = Ranking()
    keys: dict[int, int] = {}
    for item, key in changes:
        if key is None:
            ranking.discard(item)
            keys.pop(item, None)
        else:
            ranking.set(item, key)
            keys[item] = key
        assert ranking == keys
        assert ranking.first() == min(((key, item) for item, key in keys.items()), default=None)
        assert list(ranking.ordered()) == sorted(keys, key=lambda item: (keys[item], item))


def test_what_goes_while_it_is_listed_is_left_out() -> None:
    ranking: Ranking[str, int] = Ranking()
    for key, item in enumerate("abcd"):
        ranking.set(item, key)
    listed = ranking.ordered()
    assert next(listed) == "a"
    ranking.discard("b")
    ranking.set("c", 9)
    assert list(listed) == ["d"]


def test_memory_stays_in_proportion_to_the_items() -> None:
    ranking: Ranking[int, int] = Ranking()
    for key in range(10_000):
        ranking.set(key % 3, key)
        ranking.set(100, key)
        ranking.discard(100)
    assert len(pickle.dumps(ranking)) < 2_000


def test_memory_follows_when_most_items_go() -> None:
    ranking: Ranking[int, int] = Ranking()
    for item in range(1_000):
        ranking.set(item, item)
    for item in range(3, 1_000):
        ranking.discard(item)
    for key in range(1_000, 10_000):
        ranking.set(key % 3, key)
    assert len(pickle.dumps(ranking)) < 2_000


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=300))
def test_the_smallest_number_is_first_whatever_comes_and_goes(changes: list[tuple[int, bool]]) -> None:
    numbered: Numbered[str] = Numbered()
    things: dict[int, str] = {}
    for number, comes in changes:
        if not comes:
            numbered.discard(number)
            things.pop(number, None)
        elif number not in things:
            numbered.add(number, f"thing {number}")
            things[number] = f"thing {number}"
        assert numbered == things
        assert numbered.first() == min(things, default=None)


def test_numbers_that_are_gone_are_not_kept() -> None:
    numbered: Numbered[None] = Numbered()
    numbered.add(0, None)
    for number in range(1, 10_000):
        numbered.add(number, None)
        numbered.discard(number)
    assert len(pickle.dumps(numbered)) < 2000
