"""Both kinds of request queues compared with a plain list; requests leave from any position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.admission_request import AdmissionRequest
from app.scheduling.queues import RESIDENT, Queue, Request, Tenant, Version, Waiting


def request(number: int) -> Request:
    ticket = AdmissionRequest(str(number), "tenant", 1.0, 1, (1,), 1)
    return Request(ticket, 0, number, 0.0, Tenant("tenant", 1.0), Version(1, RESIDENT, RESIDENT))


def state(queue: Queue | Waiting) -> tuple[int, Request | None]:
    return queue.count, queue.first if queue.count else None


@pytest.mark.parametrize("kind", [Queue, Waiting])
@given(steps=st.lists(st.integers(-1, 30), max_size=60))
def test_the_oldest_is_first_whoever_leaves(kind, steps):
    queue, there = kind(), list[Request]()
    for number, step in enumerate(steps):
        if step < 0 or not there:
            there.append(request(number))
            queue.add(there[-1])
        else:
            gone = there[step % len(there)]
            assert queue.remove(gone) is (gone is there[0])
            there.remove(gone)
        assert state(queue) == (len(there), there[0] if there else None)
        assert hasattr(queue, "first") is bool(there)


@pytest.mark.parametrize("kind", [Queue, Waiting])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_who_is_not_there_cannot_leave(kind, others):
    queue = kind()
    for number in range(others):
        queue.add(request(number))
    before = state(queue)
    with pytest.raises(KeyError, match="7"):
        queue.remove(request(7))
    assert state(queue) == before
