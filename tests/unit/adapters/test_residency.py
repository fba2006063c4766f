"""Residency of a tier: admission decisions and evictions."""

import random

import pytest

from adapters.residency import Admission, Decision, Residency


def loaded(residency: Residency, *versions: int, now: float = 0.0) -> Residency:
    """Load these versions in order, and release all leases."""
    for version in versions:
        use(residency, version, now=now)
    return residency


def use(residency: Residency, version: int, *, now: float, size: int = 1, cost_s: float = 0.0) -> Decision:
    """Run one request from start to end."""
    decision = residency.admit(version, size, now=now, cost_s=cost_s)
    if decision.admission is Admission.LOAD:
        assert residency.loaded(version) is False
    assert residency.release(version, now=now) is False
    return decision


def test_eviction_among_equals_takes_the_least_recent() -> None:
    residency = loaded(Residency(2), 1, 2)
    assert residency.admit(3, now=5.0) == Decision(Admission.LOAD, evict=(1,))
    assert residency.residents == {2, 3}
    assert residency.loaded_ids == {2}


def test_being_used_more_often_counts() -> None:
    residency = loaded(Residency(2), 1, 1, 2)
    assert residency.admit(3, now=5.0).evict == (2,)


def test_the_end_of_a_long_use_counts() -> None:
    residency = loaded(Residency(2), 1)
    residency.admit(1, now=0.0)
    for _ in range(3):
        use(residency, 2, now=5000.0)
    residency.release(1, now=9000.0)
    assert residency.admit(3, now=9000.0).evict == (2,)


def test_yesterdays_favourite_goes() -> None:
    residency = loaded(Residency(2, half_life_s=10.0), *[1] * 1000)
    use(residency, 2, now=90.0)
    assert residency.admit(3, now=90.0).evict == (2,)
    residency = loaded(Residency(2, half_life_s=10.0), *[1] * 1000)
    use(residency, 2, now=110.0)
    assert residency.admit(3, now=110.0).evict == (1,)


def test_what_costs_more_to_load_again_stays() -> None:
    residency = Residency(2)
    use(residency, 1, now=0.0, cost_s=2.0)
    use(residency, 2, now=1.0, cost_s=0.5)
    assert residency.admit(3, now=2.0).evict == (2,)


def test_a_newly_measured_cost_replaces_the_old_one() -> None:
    residency = Residency(2)
    use(residency, 1, now=0.0, cost_s=2.0)
    use(residency, 1, now=0.0, cost_s=0.1)
    use(residency, 2, now=1.0, cost_s=0.5)
    assert residency.admit(3, now=2.0).evict == (1,)


def test_a_large_one_makes_room_before_several_small_ones() -> None:
    residency = Residency(100)
    use(residency, 1, now=0.0, size=20)
    use(residency, 2, now=1.0, size=60)
    use(residency, 3, now=2.0, size=20)
    assert residency.admit(4, 50, now=3.0).evict == (2,)
    assert residency.used == 90


def test_as_many_make_room_as_it_takes() -> None:
    residency = Residency(4)
    for version in (1, 2, 3, 4):
        use(residency, version, now=float(version))
    assert residency.admit(5, 3, now=9.0).evict == (1, 2, 3)
    assert residency.evictions == 3


def test_leased_and_loading_versions_stay() -> None:
    residency = loaded(Residency(3), 1, 2)
    for version in (1, 2, 3):
        residency.admit(version, now=1.0)
    before = (residency.residents, residency.used, residency.hits, residency.misses, residency.evictions)
    assert residency.admit(4, now=1.0) == Decision(Admission.WAIT)
    assert (residency.residents, residency.used, residency.hits, residency.misses, residency.evictions) == before
    assert residency.leases(4) == 0
    residency.release(1, now=2.0)
    assert residency.admit(4, now=2.0) == Decision(Admission.LOAD, evict=(1,))


def test_a_load_is_shared() -> None:
    residency = Residency(1)
    assert residency.admit(1, now=0.0).admission is Admission.LOAD
    assert residency.admit(1, now=0.0).admission is Admission.LOADING
    residency.loaded(1)
    residency.release(1, now=1.0)
    assert residency.leases(1) == 1
    assert residency.admit(2, now=1.0).admission is Admission.WAIT
    residency.release(1, now=1.0)
    assert residency.admit(2, now=1.0) == Decision(Admission.LOAD, evict=(1,))


def test_a_failed_load_gives_its_room_back_but_not_the_leases() -> None:
    residency = Residency(1)
    residency.admit(1, now=0.0)
    residency.failed(1)
    assert 1 not in residency
    assert residency.used == 0
    assert residency.admit(1, now=0.0).admission is Admission.LOAD
    residency.loaded(1)
    residency.release(1, now=1.0)
    assert residency.admit(2, now=1.0).admission is Admission.WAIT
    residency.release(1, now=1.0)
    assert residency.admit(2, now=1.0) == Decision(Admission.LOAD, evict=(1,))


def test_a_removed_version_stays_until_its_last_lease() -> None:
    residency = loaded(Residency(2), 1)
    residency.admit(1, now=0.0)
    assert residency.remove(1) is False
    assert residency.release(1, now=0.0) is True
    assert len(residency) == 0
    assert residency.remove(1) is False


def test_a_version_removed_while_loading_goes_after_waiters() -> None:
    residency = Residency(2)
    residency.admit(1, now=0.0)
    assert residency.remove(1) is False
    assert residency.release(1, now=0.0) is False
    assert residency.loaded(1) is True
    assert residency.residents == frozenset()
    assert residency.used == 0


def test_an_idle_version_goes_when_it_is_removed() -> None:
    residency = loaded(Residency(2), 1)
    assert residency.remove(1) is True
    assert loaded(residency, 1, 2).admit(3, now=1.0).evict == (1,)


def test_the_caller_drops_only_what_is_idle() -> None:
    residency = loaded(Residency(2), 1)
    assert residency.evict(1) is True
    assert residency.evict(1) is False
    residency.admit(2, now=0.0)
    assert residency.evict(2) is False
    residency.loaded(2)
    assert residency.evict(2) is False
    assert residency.evictions == 1


def test_one_larger_than_the_tier_is_loaded_alone() -> None:
    residency = Residency(10)
    for version in (1, 2):
        use(residency, version, now=float(version), size=5)
    residency.admit(2, now=3.0)
    assert residency.admit(3, 50, now=3.0).admission is Admission.WAIT
    residency.release(2, now=4.0)
    assert residency.admit(3, 50, now=4.0) == Decision(Admission.LOAD, evict=(1, 2))
    assert residency.admit(1, now=5.0).admission is Admission.WAIT
    residency.loaded(3)
    residency.release(3, now=6.0)
    assert residency.admit(1, now=6.0) == Decision(Admission.LOAD, evict=(3,))


def test_the_true_size_counts_once_it_is_known() -> None:
    residency = Residency(10)
    residency.admit(1, 4, now=0.0)
    residency.loaded(1, 6)
    assert residency.used == 6
    assert residency.would_fit(4)
    assert not residency.would_fit(5)
    residency.admit(2, 4, now=0.0)
    residency.loaded(2, 8)
    residency.release(1, now=1.0)
    assert residency.admit(3, 2, now=1.0) == Decision(Admission.LOAD, evict=(1,))


def test_hits_misses_and_evictions_are_counted() -> None:
    residency = loaded(Residency(1), 1, 1)
    residency.admit(2, now=1.0)
    residency.admit(2, now=1.0)
    assert (residency.hits, residency.misses, residency.evictions) == (1, 3, 1)


def test_a_scan_of_versions_used_once_does_not_flush_one_in_use() -> None:
    residency = Residency(8)
    draw = random.Random(0)
    for number in range(2000):
        use(residency, 1, now=number + draw.random() / 4)
        if number >= 5:
            # Ten other versions follow each use, so LRU would always evict the hot version.
            for other in range(10):
                use(residency, 10 + 10 * number + other, now=number + 0.5)
    assert residency.hits == 1999


def test_the_heap_does_not_grow_with_uses() -> None:
    residency = loaded(Residency(4), *[1, 2, 3, 4] * 10_000)
    assert len(residency._idle) < 100


def test_a_lease_that_was_never_taken_is_refused() -> None:
    with pytest.raises(ValueError, match="no lease"):
        Residency(1).release(1, now=0.0)


def test_the_end_of_a_load_that_never_began_is_refused() -> None:
    residency = loaded(Residency(1), 1)
    for end in (residency.loaded, residency.failed):
        for version in (1, 2):
            with pytest.raises(ValueError, match="not being loaded"):
                end(version)


@pytest.mark.parametrize("number", [0, -1])
def test_numbers_that_make_no_sense_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match=r"capacity is .* but must be 1 or more"):
        Residency(number)
    with pytest.raises(ValueError, match=r"half_life_s is .* but must be more than 0"):
        Residency(1, half_life_s=number)
    residency = Residency(1)
    with pytest.raises(ValueError, match=r"size is .* but must be 1 or more"):
        residency.admit(1, number, now=0.0)
    residency.admit(1, now=0.0)
    with pytest.raises(ValueError, match=r"size is .* but must be 1 or more"):
        residency.loaded(1, number)
