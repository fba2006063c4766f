"""Canary policy: breaches, statistical noise, and the end of a step."""

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.domain.canary_policy import (
    MIN_FAILURES,
    Decision,
    Figures,
    Policy,
    Step,
    check_policy,
    exceeds,
    find_breach,
    judge,
    total_of,
)
from app.domain.errors import InvalidRequest
from app.domain.histogram import LatencyHistogram

POLICY = Policy(steps=(Step(5, 60), Step(25, 60), Step(100, 60)), min_requests=20)

counts = st.integers(0, 3000)
rates = st.floats(0, 1)


@st.composite
def shares(draw: st.DrawFn) -> tuple[int, int]:
    """Draw a number of failures and the total."""
    total = draw(counts)
    return draw(st.integers(0, total)), total


def figures(requests: int, *, errors: int = 0, empties: int = 0, ttft: LatencyHistogram | None = None) -> Figures:
    return Figures(requests, errors, empties, ttft or LatencyHistogram())


@given(shares(), shares(), rates)
def test_a_candidate_no_worse_than_allowed_is_never_accused(
    candidate: tuple[int, int], baseline: tuple[int, int], allowed: float
) -> None:
    assume(baseline[1] and candidate[1])
    assume(candidate[0] / candidate[1] <= baseline[0] / baseline[1] + allowed)
    assert not exceeds(*candidate, *baseline, allowed)


@given(shares(), shares(), rates)
def test_a_verdict_is_monotone_in_failures(
    candidate: tuple[int, int], baseline: tuple[int, int], allowed: float
) -> None:
    failures, total = candidate
    if exceeds(failures, total, *baseline, allowed):
        assert exceeds(failures + 1, total + 1, *baseline, allowed)
    else:
        assert not exceeds(failures, total + 1, *baseline, allowed)


@given(st.integers(0, MIN_FAILURES - 1), st.integers(0, 10), shares(), rates)
def test_few_failures_are_bad_luck(failures: int, successes: int, baseline: tuple[int, int], allowed: float) -> None:
    assert not exceeds(failures, failures + successes, *baseline, allowed)


@pytest.mark.parametrize(("usual_total", "at_most"), [(0, 12), (5, 9), (20, 7), (57, 5), (5000, 3)])
def test_a_mute_candidate_is_caught_within_a_dozen_requests(usual_total: int, at_most: int) -> None:
    needed = next(n for n in range(1, 100) if exceeds(n, n, 0, usual_total, 0.02))
    assert needed <= at_most
    assert all(exceeds(n, n, 0, usual_total, 0.02) for n in range(needed, 200))


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.5, 0.95])
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_candidate_like_its_baseline_never_breaches(rate: float, share: float) -> None:
    chance = random.Random(7)
    for _ in range(40):
        counted = {True: [0, 0], False: [0, 0]}
        for _ in range(800):
            mine = counted[chance.random() < share]
            mine[0] += chance.random() < rate
            mine[1] += 1
            assert not exceeds(*counted[True], *counted[False], allowed=0.02)


def test_a_failing_engine_is_not_the_candidates_fault() -> None:
    assert find_breach(POLICY, figures(400, errors=300), figures(30, errors=25)) is None


@pytest.mark.parametrize(
    ("candidate", "code"),
    [
        (figures(8, errors=8), "error_rate"),
        (figures(8, empties=8), "empty_rate"),
        (figures(40, ttft=LatencyHistogram.of([2.0] * 40)), "ttft"),
    ],
)
def test_each_limit_is_a_breach_that_says_its_figures(candidate: Figures, code: str) -> None:
    baseline = figures(100, ttft=LatencyHistogram.of([0.1] * 100))
    verdict = judge(POLICY, 0, 1.0, baseline, candidate)
    assert (verdict.decision, verdict.code) == (Decision.BREACH, code)
    assert str(candidate.requests) in verdict.message or "2." in verdict.message


def test_first_tokens_count_only_with_enough_samples() -> None:
    slow, fast = LatencyHistogram.of([2.0] * 40), LatencyHistogram.of([0.1] * 40)
    few_slow, few_fast = LatencyHistogram.of([2.0] * 19), LatencyHistogram.of([0.1] * 19)
    assert find_breach(POLICY, figures(40, ttft=fast), figures(40, ttft=slow)) is not None
    assert find_breach(POLICY, figures(40, ttft=fast), figures(19, ttft=few_slow)) is None
    assert find_breach(POLICY, figures(19, ttft=few_fast), figures(40, ttft=slow)) is None
    indifferent = replace(POLICY, max_ttft_ratio=None)
    assert find_breach(indifferent, figures(40, ttft=fast), figures(40, ttft=slow)) is None


def test_a_few_slow_first_tokens_are_not_a_slow_candidate() -> None:
    mostly_fast = LatencyHistogram.of([0.1] * 95 + [5.0] * 5)
    assert (
        find_breach(POLICY, figures(99, ttft=LatencyHistogram.of([0.1] * 99)), figures(100, ttft=mostly_fast)) is None
    )


@pytest.mark.parametrize(
    ("step", "elapsed_s", "requests", "decision"),
    [
        (0, 59.9, 1000, Decision.WAIT),
        (0, 10_000.0, 19, Decision.WAIT),
        (0, 60.0, 20, Decision.ADVANCE),
        (1, 60.0, 20, Decision.ADVANCE),
        (2, 59.9, 20, Decision.WAIT),
        (2, 60.0, 20, Decision.PROMOTE),
    ],
)
def test_a_step_ends_after_its_time_and_its_requests(
    step: int, elapsed_s: float, requests: int, decision: Decision
) -> None:
    verdict = judge(POLICY, step, elapsed_s, figures(1000), figures(requests))
    assert verdict.decision is decision
    if decision is Decision.WAIT:
        assert f"{requests} of 20 requests" in verdict.message


@given(st.lists(st.tuples(shares(), shares(), st.lists(st.floats(0, 200), max_size=5)), max_size=5))
def test_figures_of_nodes_add_up(parts: list[tuple[tuple[int, int], tuple[int, int], list[float]]]) -> None:
    nodes = [figures(e[1] + m[1], errors=e[0], empties=m[0], ttft=LatencyHistogram.of(t)) for e, m, t in parts]
    total = total_of(nodes)
    assert total.requests == sum(node.requests for node in nodes)
    assert total.errors == sum(node.errors for node in nodes)
    assert total.empties == sum(node.empties for node in nodes)
    assert total.ttft.total == sum(len(t) for _, _, t in parts)
    for node in nodes:
        assert (total - node) + node == total


def test_a_policy_survives_the_registry() -> None:
    assert Policy.from_json(POLICY.to_json()) == POLICY
    assert Policy.from_json(replace(POLICY, max_ttft_ratio=None).to_json()).max_ttft_ratio is None
    check_policy(POLICY)
    check_policy(Policy())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"steps": ()}, "steps"),
        ({"steps": (Step(1, 1),) * 21}, "steps"),
        ({"steps": (Step(0, 60),)}, "steps[0].weight"),
        ({"steps": (Step(5, 60), Step(101, 60))}, "steps[1].weight"),
        ({"steps": (Step(5, 60), Step(5, 60))}, "steps[1].weight"),
        ({"steps": (Step(5, 0),)}, "steps[0].seconds"),
        ({"min_requests": 0}, "min_requests"),
        ({"max_error_rate": 1.5}, "max_error_rate"),
        ({"max_empty_rate": float("nan")}, "max_empty_rate"),
        ({"max_ttft_ratio": 0.5}, "max_ttft_ratio"),
    ],
)
def test_a_policy_without_sense_is_refused_by_name(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest, match=r"; use .+\.$") as caught:
        check_policy(replace(POLICY, **change))  # type: ignore[arg-type]
    assert caught.value.param == f"policy.{field}"
