from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from adapters.fair_semaphore import FairSemaphore, Permit


def test_two_shares_split_the_permits_in_half() -> None:
    semaphore = FairSemaphore(4)
    greedy = [semaphore.enter("greedy") for _ in range(10)]
    late = [semaphore.enter("late") for _ in range(2)]
    assert [permit.granted.is_set() for permit in greedy] == [True] * 2 + [False] * 8
    assert [permit.granted.is_set() for permit in late] == [True] * 2


def test_shares_take_turns_and_within_one_the_first_comes_first() -> None:
    semaphore = FairSemaphore(2)
    running = [semaphore.enter("other"), semaphore.enter("another")]
    waiting = {name: semaphore.enter(name[0]) for name in ("a1", "a2", "a3", "b1", "b2")}
    order = []
    while waiting:
        semaphore.leave(running.pop(0))
        for name in [name for name, permit in waiting.items() if permit.granted.is_set()]:
            order.append(name)
            running.append(waiting.pop(name))
    assert order == ["a1", "b1", "a2", "b2", "a3"]


def test_background_work_is_last_until_someone_awaits_it() -> None:
    semaphore = FairSemaphore(1)
    first, spare, others = semaphore.enter("a"), semaphore.enter(None), [semaphore.enter("a") for _ in range(2)]
    semaphore.leave(first)
    assert others[0].granted.is_set()
    semaphore.promote(spare, "b")
    semaphore.leave(others[0])
    assert others[1].granted.is_set() != spare.granted.is_set()
    semaphore.leave(others[1] if others[1].granted.is_set() else spare)
    assert others[1].granted.is_set()
    assert spare.granted.is_set()


@given(
    permits=st.integers(1, 6),
    steps=st.lists(st.tuples(st.sampled_from("elh"), st.sampled_from(["a", "b", "c", None]), st.integers(0, 30))),
)
def test_permits_are_never_exceeded_and_never_idle_for_nothing(
    permits: int, steps: list[tuple[str, str | None, int]]
) -> None:
    semaphore, present, most = FairSemaphore(permits), list[Permit](), max(1, permits // 2)
    for step, share, index in steps:
        if step == "e":
            present.append(semaphore.enter(share))
        elif present and step == "l":
            semaphore.leave(present.pop(index % len(present)))
        elif present and step == "h":
            semaphore.promote(present[index % len(present)], share or "a")
        running = [permit for permit in present if permit.granted.is_set()]
        busy = Counter(permit.share for permit in running)
        assert len(running) <= permits
        if len(running) < permits:
            assert all(permit.granted.is_set() or busy[permit.share] >= most for permit in present)
    for permit in present:
        semaphore.leave(permit)
        semaphore.leave(permit)
    assert semaphore.enter("a").granted.is_set()
