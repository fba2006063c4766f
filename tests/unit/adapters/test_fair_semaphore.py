from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from adapters.fair_semaphore import FairSemaphore, Permit


def test_two_shares_split_the_places_in_half() -> None:
    turns = FairSemaphore(4)
    greedy = [turns.enter("greedy") for _ in range(10)]
    late = [turns.enter("late") for _ in range(2)]
    assert [turn.begun.is_set() for turn in greedy] == [True] * 2 + [False] * 8
    assert [turn.begun.is_set() for turn in late] == [True] * 2


def test_shares_take_turns_and_within_one_the_first_comes_first() -> None:
    turns = FairSemaphore(2)
    running = [turns.enter("other"), turns.enter("another")]
    waiting = {name: turns.enter(name[0]) for name in ("a1", "a2", "a3", "b1", "b2")}
    order = []
    while waiting:
        turns.leave(running.pop(0))
        for name in [name for name, turn in waiting.items() if turn.begun.is_set()]:
            order.append(name)
            running.append(waiting.pop(name))
    assert order == ["a1", "b1", "a2", "b2", "a3"]


def test_background_work_is_last_until_someone_awaits_it() -> None:
    turns = FairSemaphore(1)
    first, spare, others = turns.enter("a"), turns.enter(None), [turns.enter("a") for _ in range(2)]
    turns.leave(first)
    assert others[0].begun.is_set()
    turns.hurry(spare, "b")
    turns.leave(others[0])
    assert others[1].begun.is_set() != spare.begun.is_set()
    turns.leave(others[1] if others[1].begun.is_set() else spare)
    assert others[1].begun.is_set()
    assert spare.begun.is_set()


@given(
    places=st.integers(1, 6),
    steps=st.lists(st.tuples(st.sampled_from("elh"), st.sampled_from(["a", "b", "c", None]), st.integers(0, 30))),
)
def test_places_are_never_exceeded_and_never_idle_for_nothing(
    places: int, steps: list[tuple[str, str | None, int]]
) -> None:
    turns, present, most = FairSemaphore(places), list[Permit](), max(1, places // 2)
    for step, share, index in steps:
        if step == "e":
            present.append(turns.enter(share))
        elif present and step == "l":
            turns.leave(present.pop(index % len(present)))
        elif present and step == "h":
            turns.hurry(present[index % len(present)], share or "a")
        running = [turn for turn in present if turn.begun.is_set()]
        busy = Counter(turn.share for turn in running)
        assert len(running) <= places
        if len(running) < places:
            assert all(turn.begun.is_set() or busy[turn.share] >= most for turn in present)
    for turn in present:
        turns.leave(turn)
        turns.leave(turn)
    assert turns.enter("a").begun.is_set()
