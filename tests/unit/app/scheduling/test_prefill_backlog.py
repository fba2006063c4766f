"""Prefill backlog: large enough to keep the engine busy, and bounded to a part for each tenant."""

import pytest

from app.scheduling.admission import Admission
from app.scheduling.admission_request import AdmissionRequest, Bounds
from app.scheduling.prefill_backlog import PART, STEPS
from tests.support.scheduling.engine import staged

STEP = 100
OWN = STEPS * STEP
BOUNDS = Bounds(requests=10**6, tenant_requests=10**6, seconds=1e9)


class Queue:
    """Engine with room for a thousand sequences that prefills a prompt only on the test's command."""

    def __init__(self, slots: int = 1) -> None:
        admission = Admission(slots=slots, window=1000, step_tokens=STEP, bounds=BOUNDS)
        self.admission, self.running, self.count = staged(admission, range(1, 100)), list[str](), 0
        self.now = 0.0

    def enter(self, tenant: str, prompt: int, version_id: int | None = None) -> str:
        self.count += 1
        request = AdmissionRequest(f"{tenant} {self.count}", tenant, 1.0, version_id, (prompt,), 10)
        self.running += self.admission.enter(request, self.now)
        return request.request_id

    def prefill(self, name: str) -> None:
        self.running += self.admission.prefilled(name, self.now)


def test_one_tenants_prompts_fill_only_a_part_of_a_step() -> None:
    queue = Queue()
    sent = [queue.enter("flood", 50) for _ in range(100)]
    assert queue.running == sent[: OWN // 50]
    queue.prefill(sent[0])
    queue.prefill(sent[0])
    assert queue.running == sent[: OWN // 50 + 1]


def test_whoever_comes_meanwhile_does_not_wait_for_them() -> None:
    queue = Queue()
    for _ in range(100):
        queue.enter("flood", 50)
    assert queue.enter("modest", 50) in queue.running
    assert queue.enter("other", OWN) in queue.running


def test_a_long_prompt_is_prefilled_alone_in_its_tenant() -> None:
    queue = Queue()
    first, second = (queue.enter("long", 100 * STEP) for _ in range(2))
    assert queue.running == [first]
    assert queue.enter("modest", 50) in queue.running
    queue.prefill(first)
    assert second in queue.running


def test_all_tenants_share_a_bound_and_none_starves() -> None:
    queue = Queue()
    sent = [queue.enter(f"tenant {number}", 10 * OWN) for number in range(3 * PART)]
    assert len(queue.running) == PART
    for name in sent:
        assert name in queue.running
        queue.prefill(name)


def test_whoever_ends_unprefilled_leaves_its_room_to_others() -> None:
    queue = Queue()
    first, second = (queue.enter("flood", OWN) for _ in range(2))
    queue.running += queue.admission.leave(first, 0.0)
    assert queue.running == [first, second]
    assert queue.admission.prefilled(first, 0.0) == ()


def test_an_overdue_version_gets_a_slot_from_its_tenant() -> None:
    """Its wait has a guaranteed bound."""
    queue = Queue(slots=2)
    queue.enter("owner", OWN, version_id=1)
    _, other = (queue.enter("owner", OWN, version_id=version_id) for version_id in (1, 2))
    assert other not in queue.running
    queue.now = 10.0
    queue.enter("modest", 50)
    assert other in queue.running


def test_where_a_step_has_no_end_nothing_is_held_back() -> None:
    admission = Admission(slots=1, window=1000, bounds=BOUNDS)
    admitted = [admission.enter(AdmissionRequest(str(n), "a", 1.0, None, (10**9,), 1), 0.0) for n in range(1000)]
    assert admitted == [(str(n),) for n in range(1000)]


def test_a_step_takes_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="step_tokens is 0; it must be 1 or more"):
        Admission(slots=1, window=1, step_tokens=0)
