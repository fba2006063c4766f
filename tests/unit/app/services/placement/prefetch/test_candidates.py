from hypothesis import given
from hypothesis import strategies as st

from app.services.placement.prefetch.candidates import AT_ONCE, Candidates


def test_alias_moves_go_before_predictions_and_leftovers() -> None:
    candidates = Candidates()
    candidates.begin_again([7, 8])
    for version_id in (1, 2):
        candidates.seen("a", version_id, 0.0)
    candidates.moved(5, tenant_id=1)
    assert candidates
    assert candidates.take(0.0, there=()) == [5, 1, 7, 8]
    assert not candidates


def test_what_is_there_is_not_wanted_until_it_is_evicted() -> None:
    candidates = Candidates()
    for version_id in (1, 2):
        candidates.seen("a", version_id, 0.0)
    assert candidates.take(0.0, there={1, 2}) == []
    candidates.seen("a", 2, 1.0)
    assert candidates.take(1.0, there={2}) == []
    candidates.look_again(1)
    candidates.seen("a", 2, 2.0)
    assert candidates.take(2.0, there={2}) == [1]


def test_a_failed_prefetch_is_retried_after_a_minute() -> None:
    candidates, asked = Candidates(), []
    for moment in range(150):
        candidates.seen("a", 1, float(moment))
        candidates.seen("a", 2, float(moment))
        asked += [moment for one in candidates.take(float(moment), there={2}) if one == 1]
    assert asked == [0, 61, 122]


def test_no_more_are_on_their_way_than_the_engine_is_to_bear() -> None:
    candidates = Candidates()
    candidates.begin_again(range(100))
    first = candidates.take(0.0, there=())
    assert first == list(range(AT_ONCE))
    assert candidates.take(1.0, there=()) == []
    # Three have arrived. A version that has not arrived after ten seconds no longer counts as in flight.
    assert candidates.take(2.0, there=first[:3]) == [16, 17, 18]
    assert candidates.take(11.0, there=first[:3]) == list(range(19, 19 + AT_ONCE - 3))


def test_a_restarted_engine_gets_the_used_versions() -> None:
    candidates = Candidates()
    candidates.begin_again(range(AT_ONCE))
    candidates.take(0.0, there=())
    candidates.begin_again([3, 4])
    assert candidates.take(0.0, there=()) == [3, 4]


def test_one_tenants_moves_leave_the_others_in() -> None:
    candidates = Candidates()
    candidates.moved(1, tenant_id=1)
    for version_id in range(1000, 6000):
        candidates.moved(version_id, tenant_id=2)
    assert candidates.take(0.0, there=()) == [1, 5996, 5997, 5998, 5999]


def test_a_tenant_gets_two_predictions_at_a_time() -> None:
    candidates = Candidates()
    for version_id in range(5000):
        candidates.seen("hostile", 10_000 + version_id, 0.0)
    for version_id in (1, 2):
        candidates.seen("modest", version_id, 0.0)
    wanted = candidates.take(0.0, there=())
    assert len(wanted) == 3
    assert wanted[-1] == 1


def test_without_room_nothing_is_left_to_take() -> None:
    candidates = Candidates()
    candidates.begin_again([1])
    candidates.moved(2, tenant_id=1)
    candidates.seen("a", 3, 0.0)
    candidates.no_room()
    assert not candidates
    assert candidates.take(0.0, there=()) == []


_STEPS = st.lists(
    st.tuples(st.sampled_from(["seen", "moved", "again", "take", "evicted"]), st.integers(1, 30), st.floats(0, 40)),
    max_size=60,
)


@given(_STEPS, st.integers(1, 30))
def test_a_forgotten_prompt_is_never_taken(steps: list[tuple[str, int, float]], gone: int) -> None:
    candidates, now = Candidates(), 0.0
    for step, number, passed in [*steps, ("forget", gone, 0.0), *(("take", one, 61.0) for one in range(3))]:
        now += passed
        match step:
            case "seen":
                candidates.seen(f"tenant-{number % 3}", number, now)
            case "moved":
                candidates.moved(number, tenant_id=number % 3)
            case "again":
                candidates.begin_again(range(number))
            case "evicted":
                candidates.look_again(number)
            case "forget":
                candidates.forget([gone])
            case "take":
                there = range(number, number + 5)
                wanted = candidates.take(now, there)
                assert len(set(wanted)) == len(wanted) <= AT_ONCE
                assert not set(wanted) & set(there)
    candidates.begin_again([])
    for tenant in range(3):
        candidates.seen(f"tenant-{tenant}", 99, now)
    assert gone not in candidates.take(now, there=())
