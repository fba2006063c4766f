"""Turns of batches on one server: tenants and batches alternate, lines of a version stay together."""

from collections import Counter, deque
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.batch_turns import BatchTurns, FreeChunks, InHand, next_line

TENANTS = {"a1": ("a", 1.0), "a2": ("a", 1.0), "b1": ("b", 1.0)}


def free(batch_id: str, version_id: int | None, first: int, count: int = 1) -> FreeChunks:
    return FreeChunks(batch_id, version_id, first, count)


def test_a_small_tenant_goes_before_a_large_one():
    turns, in_hand = BatchTurns(), [InHand("a1", 1, 200, 56)]
    chosen = turns.choose([free("a1", 1, 3, 90), free("b1", 7, 0)], in_hand, tenants=TENANTS, resident=())
    assert chosen == free("b1", 7, 0)


def test_a_heavier_tenant_holds_more_lines():
    turns, tenants = BatchTurns(), TENANTS | {"a1": ("a", 4.0)}
    in_hand = [InHand("a1", 1, 300, 0), InHand("b1", 7, 100, 0)]
    chosen = turns.choose([free("a1", 1, 3), free("b1", 7, 5)], in_hand, tenants=tenants, resident=())
    assert chosen == free("a1", 1, 3)


def test_batches_of_one_tenant_alternate():
    turns, chunks = BatchTurns(), [free("a1", 1, 0, 9), free("a2", 2, 0, 9)]
    chosen = [turns.choose(chunks, [], tenants=TENANTS, resident=()) for _ in range(4)]
    assert [chunk.batch_id for chunk in chosen if chunk] == ["a1", "a2", "a1", "a2"]


def test_the_running_version_goes_first_and_then_a_resident_one():
    chunks = [free("a1", 1, 0), free("a1", 2, 4), free("a1", 3, 8)]
    running = [InHand("a1", 3, 1, 1)]
    assert BatchTurns().choose(chunks, running, tenants=TENANTS, resident={2}) == chunks[2]
    assert BatchTurns().choose(chunks, [], tenants=TENANTS, resident={2}) == chunks[1]
    assert BatchTurns().choose(chunks, [], tenants=TENANTS, resident=()) == chunks[0]


def test_no_chunk_of_another_batch_is_taken():
    assert BatchTurns().choose([free("c1", 1, 0)], [], tenants=TENANTS, resident=()) is None


def test_forgotten_turns_begin_again():
    turns, chunks = BatchTurns(), [free("a1", 1, 0, 9), free("a2", 2, 0, 9)]
    first = turns.choose(chunks, [], tenants=TENANTS, resident=())
    turns.forget([], [])
    assert turns.choose(chunks, [], tenants=TENANTS, resident=()) == first


@given(
    st.lists(st.tuples(st.sampled_from(sorted(TENANTS)), st.integers(1, 3), st.integers(1, 6)), max_size=12),
    st.integers(1, 20),
)
def test_every_chunk_is_taken_once(sizes, places):
    """Model: a server that takes a chunk whenever it holds fewer than ``places`` lines, and runs one line at a time."""
    turns, waiting = BatchTurns(), Counter[tuple[str, int]]()
    for batch_id, version_id, count in sizes:
        waiting[batch_id, version_id] += count
    held = deque[InHand]()
    taken = Counter[tuple[str, int]]()
    while True:
        chunks = [free(batch, version, 0, count) for (batch, version), count in waiting.items() if count]
        chosen = turns.choose(chunks, list(held), tenants=TENANTS, resident=())
        if chosen is not None and len(held) < places:
            assert chosen.version_id is not None
            waiting[chosen.batch_id, chosen.version_id] -= 1
            taken[chosen.batch_id, chosen.version_id] += 1
            held.append(InHand(chosen.batch_id, chosen.version_id, 1, 0))
        elif held:
            held.popleft()
        else:
            break
    expected = Counter[tuple[str, int]]()
    for batch_id, version_id, count in sizes:
        expected[batch_id, version_id] += count
    assert taken == expected


def test_lines_start_where_fewest_run():
    in_hand = [InHand("a1", 1, 5, 4), InHand("b1", 7, 5, 1)]
    room = dict.fromkeys(TENANTS, 10)
    assert next_line(in_hand, tenants=TENANTS, room=room) == in_hand[1]
    assert next_line(in_hand, tenants=TENANTS | {"a1": ("a", 8.0)}, room=room) == in_hand[0]


def test_lines_of_a_batch_without_room_wait():
    in_hand = [InHand("a1", 1, 5, 0), InHand("a2", 1, 5, 3), InHand("b1", 7, 0, 0)]
    assert next_line(in_hand, tenants=TENANTS, room={"a1": 0, "a2": 1, "b1": 9}) == in_hand[1]
    assert next_line(in_hand, tenants=TENANTS, room={}) is None
    assert next_line(in_hand, tenants={}, room={"a1": 1}) is None


@given(st.integers(1, 40), st.floats(0.25, 8), st.floats(0.25, 8))
def test_lines_in_flight_follow_the_weights(window, weight_a, weight_b):
    tenants = {"a1": ("a", weight_a), "b1": ("b", weight_b)}
    in_hand = {"a1": InHand("a1", 1, 100, 0), "b1": InHand("b1", 2, 100, 0)}
    for _ in range(window):
        chosen = next_line(in_hand.values(), tenants=tenants, room=dict.fromkeys(tenants, 100))
        assert chosen is not None
        in_hand[chosen.batch_id] = replace(chosen, waiting=chosen.waiting - 1, running=chosen.running + 1)
    share_a = in_hand["a1"].running / weight_a
    share_b = in_hand["b1"].running / weight_b
    assert abs(share_a - share_b) <= 1 / min(weight_a, weight_b) + 1e-9
