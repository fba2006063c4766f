"""Virtual token counters: charges, settlement and lifts."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.scheduling.admission import Admission
from app.scheduling.admission_request import AdmissionRequest, Bounds


def counter(admission: Admission, tenant: str) -> float:
    return next(state.counter for state in admission.snapshot(0.0).tenants if state.tenant == tenant)


def request(name: str, tenant: str, *, prompt: int = 10, output: int = 100, weight: float = 1.0) -> AdmissionRequest:
    return AdmissionRequest(name, tenant, weight, None, (prompt,), output)


def test_a_request_is_charged_at_admission_and_settled_later() -> None:
    admission = Admission(slots=1, window=2)
    admission.enter(request("a", "t", prompt=10, output=100, weight=2.0), 0.0)
    admission.enter(request("b", "t", prompt=0, output=0), 0.0)
    assert counter(admission, "t") == (10 + 2 * 100) / 2
    admission.leave("a", 1.0, prompt_tokens=12, output_tokens=30)
    assert counter(admission, "t") == (12 + 2 * 30) / 2


def test_a_request_that_never_ran_is_not_charged() -> None:
    admission = Admission(slots=1, window=1)
    admission.enter(request("a", "t"), 0.0)
    admission.enter(request("b", "t"), 0.0)
    admission.leave("b", 1.0)
    assert counter(admission, "t") == 210


def test_without_true_counts_the_estimate_stays() -> None:
    admission = Admission(slots=1, window=2)
    admission.enter(request("a", "t"), 0.0)
    admission.enter(request("b", "t", prompt=0, output=0), 0.0)
    admission.leave("a", 1.0)
    assert counter(admission, "t") == 210


def test_an_estimate_is_recent_usage_up_to_the_request() -> None:
    admission = Admission(slots=1, window=3)
    admission.enter(request("a", "t", prompt=0, output=4096), 0.0)
    admission.leave("a", 1.0, output_tokens=30)
    admission.enter(request("b", "t", prompt=0, output=4096), 1.0)
    assert counter(admission, "t") == 60 + 60
    admission.enter(request("c", "t", prompt=0, output=5), 1.0)
    assert counter(admission, "t") == 60 + 60 + 10


def test_arrivals_are_lifted_to_the_smallest_counter() -> None:
    admission = Admission(slots=1, window=1, credit_s=0.0)
    admission.enter(request("a", "early", prompt=100, output=0), 0.0)
    admission.enter(request("b", "early", prompt=100, output=0), 0.0)
    admission.enter(request("c", "other", prompt=100, output=0), 0.0)
    admission.leave("a", 1.0, prompt_tokens=100, output_tokens=0)
    assert (counter(admission, "early"), counter(admission, "other")) == (100, 100)
    admission.leave("c", 2.0, prompt_tokens=100, output_tokens=0)
    admission.enter(request("d", "late"), 3.0)
    assert counter(admission, "late") == 100


def test_a_lone_arrival_is_lifted_to_the_last_counter() -> None:
    admission = Admission(slots=1, window=1, credit_s=0.0)
    for number in range(3):
        admission.enter(request(str(number), "early", prompt=100, output=0), 0.0)
        admission.leave(str(number), 1.0, prompt_tokens=100, output_tokens=0)
    admission.enter(request("b", "late", prompt=1, output=0), 2.0)
    assert counter(admission, "late") == 300 + 1


@pytest.mark.parametrize(("credit_s", "lifted"), [(0.0, 500), (1.0, 300), (2.5, 200), (4.0, 0)])
def test_who_comes_may_catch_up_what_was_served_a_moment_ago(credit_s: float, lifted: float) -> None:
    """A backlogged tenant is served 100 tokens a second; its counter is sampled every ``credit_s`` seconds."""
    admission = Admission(slots=1, window=1, aside=0, credit_s=credit_s)
    for number in range(10):
        admission.enter(request(str(number), "early", prompt=100, output=0), 0.0)
    for number in range(5):
        admission.leave(str(number), number + 1.0, prompt_tokens=100, output_tokens=0)
    admission.enter(AdmissionRequest("late", "late", 1.0, None, (10,), 100), 5.5)
    assert counter(admission, "late") == lifted


#: Tenant, or None for a new one that costs nothing; tokens; pause before it in seconds; request that ends before it.
ASKED = st.tuples(
    st.sampled_from(["a", "b", "c", None]),
    st.integers(1, 300),
    st.sampled_from([0.0, 0.5, 1.0, 4.0]),
    st.none() | st.integers(0, 5),
)


@given(st.lists(ASKED, max_size=30))
@example(
    [
        *(("a", 100, 0.0, None), ("b", 118, 0.0, None), ("a", 10, 0.0, None), ("b", 1, 0.0, None)),
        *(("a", 50, 1.0, 0), ("a", 50, 1.0, 1), (None, 1, 1.0, None), (None, 1, 1.0, None)),
    ]
)
def test_a_later_tenant_never_passes_an_earlier_unserved_one(
    asked: list[tuple[str | None, int, float, int | None]],
) -> None:
    """This also holds if the smallest counter consists mostly of an estimate."""
    # Long pauses make the measured rate low, and the estimated wait longer than the default bound.
    admission = Admission(slots=1, window=2, credit_s=1.0, bounds=Bounds(seconds=1e15))
    now, lifts, inside = 0.0, [0.0], list[tuple[str, int]]()
    for number, (tenant, tokens, pause_s, ends) in enumerate(asked):
        now += pause_s
        if ends is not None and inside:
            name, prompt_tokens = inside.pop(ends % len(inside))
            admission.leave(name, now, prompt_tokens=prompt_tokens, output_tokens=0)
        if tenant:
            admission.enter(request(str(number), tenant, prompt=tokens, output=0), now)
            inside.append((str(number), tokens))
        else:
            new = f"new {number}"
            admission.enter(request(new, new, prompt=0, output=0), now)
            lifts.append(counter(admission, new))
            admission.leave(new, now, prompt_tokens=0, output_tokens=0)
    assert lifts == sorted(lifts)


def test_after_a_pause_nobody_is_behind() -> None:
    admission = Admission(slots=1, window=1, credit_s=1.0)
    admission.enter(request("a", "early", prompt=100, output=0), 0.0)
    admission.leave("a", 0.5, prompt_tokens=100, output_tokens=0)
    admission.enter(request("b", "late", prompt=1, output=0), 3.0)
    assert counter(admission, "late") == 100 + 1


def test_what_is_owed_is_remembered_while_the_tenant_is_away() -> None:
    admission = Admission(slots=1, window=2)
    admission.enter(request("x", "busy", prompt=1, output=0), 0.0)
    admission.enter(request("a", "greedy", prompt=1000, output=0), 0.0)
    admission.enter(request("y", "busy", prompt=1, output=0), 0.0)
    admission.leave("a", 1.0, prompt_tokens=1000, output_tokens=0)
    assert {state.tenant for state in admission.snapshot(1.0).tenants} == {"busy"}
    admission.enter(request("z", "busy", prompt=1, output=0), 1.0)
    admission.enter(request("b", "greedy", prompt=1, output=0), 2.0)
    assert counter(admission, "greedy") >= 1000
