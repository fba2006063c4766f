"""Recent requests by version: exact for few versions, bounded for many, expired after the window."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from adapters.identity import VersionKey
from app.domain.adapters import ResolvedVersion
from app.services.serving.adapter_traffic import OTHER, Share, Traffic


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def version(number: int) -> ResolvedVersion:
    key = VersionKey(number, "c" * 64, "d" * 64, 1, 1)
    return ResolvedVersion(key, "prices", number, "pricing", None, None, None, {})


def counted(requests: list[int], **options: int) -> Traffic:
    traffic = Traffic(monotonic=Clock(), **options)
    for number in requests:
        traffic.requested(version(number))
    return traffic


def test_nobody_asked() -> None:
    assert Traffic().most(5) == [Share(0, OTHER, 0)]


def test_the_most_asked_for_come_first_and_the_rest_together() -> None:
    assert counted([1, 2, 2, 3, 3, 3, 4]).most(2) == [
        Share(3, "pricing/prices@3", 3),
        Share(2, "pricing/prices@2", 2),
        Share(0, OTHER, 2),
    ]


@given(st.lists(st.integers(1, 40), max_size=200), st.integers(0, 50), st.integers(1, 50))
def test_every_request_is_counted_once_and_rows_are_bounded(requests: list[int], limit: int, distinct: int) -> None:
    traffic = counted(requests, distinct=distinct)
    shares = traffic.most(limit)
    assert sum(share.requests for share in shares) == len(requests)
    assert len(shares) <= min(limit, distinct) + 1
    true = Counter(requests)
    assert all(share.requests <= true[share.version_id] for share in shares[:-1])
    if len(true) <= min(limit, distinct):
        assert {share.version_id: share.requests for share in shares[:-1]} == true


def test_the_window_moves_on() -> None:
    clock = Clock()
    traffic = Traffic(window_s=10, steps=10, monotonic=clock)
    for number in (1, 2):
        traffic.requested(version(number))
        clock.now += 4
    assert [share.version_id for share in traffic.most(5)] == [1, 2, 0]
    clock.now += 4
    assert [share.version_id for share in traffic.most(5)] == [2, 0]
    clock.now += 100
    assert traffic.most(5) == [Share(0, OTHER, 0)]
