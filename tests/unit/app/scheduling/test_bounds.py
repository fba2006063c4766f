"""Bounds of the queue: refusals and their contents."""

from dataclasses import replace
from itertools import count

import pytest

from app.scheduling.admission import Admission
from app.scheduling.admission_request import AdmissionRequest, Bounds, Refused
from tests.support.scheduling.engine import Engine, staged

NUMBERS = count()


def request(
    tenant: str = "t", version: int | None = None, *, deadline: float | None = None, output: int = 50
) -> AdmissionRequest:
    return AdmissionRequest(f"asked {next(NUMBERS)}", tenant, 1.0, version, (100,), output, deadline=deadline)


def refusal(admission: Admission, asked: AdmissionRequest, now: float) -> Refused:
    with pytest.raises(Refused) as refused:
        admission.enter(asked, now)
    assert refused.value.retry_after_s >= 1
    return refused.value


def busy(*, waiting: int, tenant: str = "t", bounds: Bounds = Bounds()) -> Engine:  # noqa: B008 - frozen
    """Build an engine with measured rates (4 requests a second, 200 weighted tokens each) and a backlog."""
    engine = Engine(Admission(slots=1, window=4, bounds=bounds))
    engine.ended = lambda _: engine.enter(tenant, prompt=100, output=50)
    for _ in range(4 + waiting):
        engine.enter(tenant, prompt=100, output=50)
    engine.run(20.0)
    return engine


def test_the_bounds_in_number_hold_for_a_tenant_and_for_all() -> None:
    admission = Admission(slots=1, window=1, bounds=Bounds(requests=5, tenant_requests=3))
    for _ in range(4):
        admission.enter(request("a"), 0.0)
    refused = refusal(admission, request("a"), 0.0)
    assert (refused.scope, refused.found, refused.allowed) == ("tenant", 3, 3)
    for _ in range(2):
        admission.enter(request("b"), 0.0)
    refused = refusal(admission, request("b"), 0.0)
    assert (refused.scope, refused.found, refused.allowed) == ("server", 5, 5)


def test_the_servers_own_work_is_never_refused() -> None:
    admission = Admission(slots=1, window=1, bounds=Bounds(requests=1, tenant_requests=1))
    for _ in range(5):
        admission.enter(request("", deadline=-1.0), 0.0)
    assert admission.waiting == 4


def test_a_request_that_can_run_at_once_is_never_refused() -> None:
    admission = Admission(slots=2, window=2, bounds=Bounds(requests=0, tenant_requests=0, seconds=0.0))
    staged(admission, range(1, 2))
    for version in (None, 1):
        asked = request(version=version, deadline=-1.0)
        assert admission.enter(asked, 0.0) == (asked.request_id,)
    assert refusal(admission, request(), 0.0).scope == "tenant"


def test_a_waiting_version_does_not_block_a_ready_one() -> None:
    admission = Admission(slots=1, window=4, bounds=Bounds(requests=1))
    staged(admission, range(1, 3))
    admission.enter(request(version=1), 0.0)
    admission.enter(request(version=2), 0.0)
    for version in (1, None):
        asked = request(version=version)
        assert admission.enter(asked, 0.0) == (asked.request_id,)
    assert refusal(admission, request(version=2), 0.0).scope == "server"


def test_a_short_prompt_waits_behind_its_tenants_long_one() -> None:
    admission = Admission(slots=1, window=8, step_tokens=100, bounds=Bounds(tenant_requests=1))
    for prompt_tokens in (150, 100):
        admission.enter(replace(request(), prompts=(prompt_tokens,)), 0.0)
    assert (admission.running, admission.waiting) == (1, 1)
    assert refusal(admission, replace(request(), prompts=(50,)), 0.0).scope == "tenant"
    asked = replace(request("other"), prompts=(50,))
    assert admission.enter(asked, 0.0) == (asked.request_id,)


def test_nobody_is_refused_on_a_guess() -> None:
    admission = Admission(slots=1, window=1, bounds=Bounds(seconds=0.001))
    for _ in range(100):
        admission.enter(request(output=10**6, deadline=0.001), 0.0)
    assert admission.waiting == 99


def test_a_hopeless_wait_is_refused_with_retry_after() -> None:
    engine = busy(waiting=40)
    now = engine.now
    refused = refusal(engine.admission, request(deadline=now + 5.0), now)
    assert refused.scope == "deadline"
    assert refused.found == pytest.approx(10.0, rel=0.15)
    assert refused.allowed == pytest.approx(5.0)
    assert refused.retry_after_s == pytest.approx(refused.found - 5.0)
    assert engine.admission.enter(request(deadline=now + 12.0), now) == ()


def crowd(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.admission.enter(request(), engine.now)


def test_who_would_wait_beyond_the_bound_is_refused() -> None:
    engine = busy(waiting=15, bounds=Bounds(seconds=5.0))
    crowd(engine, 2)
    with pytest.raises(Refused) as refused:
        crowd(engine, 8)
    assert (refused.value.scope, refused.value.allowed) == ("wait", 5.0)
    assert refused.value.found == pytest.approx(5.0, abs=0.5)


def test_a_modest_tenant_behind_a_greedy_one_does_not_wait() -> None:
    engine = busy(waiting=900, tenant="greedy")
    assert refusal(engine.admission, request("greedy", deadline=engine.now + 100.0), engine.now).scope == "deadline"
    asked = request("modest", deadline=engine.now + 1.0)
    assert engine.admission.enter(asked, engine.now) == (asked.request_id,)


def test_a_version_without_a_slot_waits_for_the_turns_before_it() -> None:
    """Twenty versions of one tenant wait for one slot; each slot tenure takes 1 s."""
    engine = Engine(staged(Admission(slots=1, window=100, max_age_s=0.5), range(1, 30)))
    engine.ended = lambda ended: engine.enter(ended.tenant, ended.version_id)
    for version in range(1, 21):
        engine.enter("t", version)
    engine.run(30.0)
    refused = refusal(engine.admission, request(version=25, deadline=engine.now + 5.0), engine.now)
    assert refused.scope == "deadline"
    assert refused.found == pytest.approx(20.0, rel=0.15)
    assert engine.admission.enter(request(version=25, deadline=engine.now + 30.0), engine.now) == ()
