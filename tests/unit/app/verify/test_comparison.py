"""Verdicts of the comparison on answers with known scores."""

import math

import pytest

from app.verify.comparison import FLOAT32_BOUND, Answer, Scores, judge
from app.verify.prompts import default_lengths, prompts

ANSWER = Answer((5, 6, 7), (1, 2, 3), (-0.5, -1.0, -0.25))


def scores(*logprobs: float, best: tuple[int, ...] = (1, 2, 3), ahead: float = 0.0) -> Scores:
    """Build reference scores; where the best token differs from the engine's, it is ``ahead`` by this much."""
    found = logprobs or ANSWER.logprobs
    tops = [one + ahead * (token != other) for one, token, other in zip(found, ANSWER.tokens, best, strict=True)]
    return Scores(tuple(found), best, tuple(tops))


def test_the_same_numbers_are_right() -> None:
    verdict = judge([ANSWER], [scores()])
    assert (verdict.reasons, verdict.largest, verdict.mean) == ((), 0.0, 0.0)


def test_a_difference_beyond_the_bound_is_wrong() -> None:
    verdict = judge([ANSWER], [scores(-0.5, -1.0, -0.25 + 4 * FLOAT32_BOUND)])
    assert [reason.partition(" is ")[0] for reason in verdict.reasons] == [
        "The largest difference of logprobs",
        "The mean difference of logprobs",
    ]


def test_another_token_is_wrong_and_is_counted_from_one() -> None:
    verdict = judge([ANSWER], [scores(best=(1, 9, 9), ahead=0.5)])
    assert verdict.prompts[0].first_other == 1
    assert verdict.reasons == ("Token 2 after a prompt of 3 tokens differs from the reference.",)


def test_of_two_equally_likely_tokens_either_is_right() -> None:
    assert judge([ANSWER], [scores(best=(1, 9, 3), ahead=FLOAT32_BOUND / 2)]).reasons == ()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_wrong(number: float) -> None:
    answer = Answer(ANSWER.prompt, ANSWER.tokens, (-0.5, number, -0.25))
    assert judge([answer], [scores()]).reasons
    assert judge([answer], [scores()], [scores(-0.6, -1.1, -0.3)]).reasons


def test_a_narrow_type_is_allowed_four_times_its_own_difference() -> None:
    exact, narrow = scores(), scores(-0.51, -1.01, -0.26)
    off = Answer(ANSWER.prompt, ANSWER.tokens, (-0.539, -1.0, -0.25))
    assert judge([off], [exact], [narrow]).reasons == ()
    far = Answer(ANSWER.prompt, ANSWER.tokens, (-0.541, -1.0, -0.25))
    [reason] = judge([far], [exact], [narrow]).reasons
    assert reason.startswith("The largest difference of logprobs is")


@pytest.mark.parametrize(("context", "lengths"), [(16, [4]), (2048, [8, 24, 72, 512]), (131_072, [8, 24, 72, 2048])])
def test_lengths_are_short_and_a_quarter_of_the_context(context: int, lengths: list[int]) -> None:
    assert default_lengths(context, 2048) == lengths


def test_prompts_are_repeatable_and_have_no_special_tokens() -> None:
    found = prompts(100, {0, 1, 2}, [8, 512])
    assert [len(prompt) for prompt in found] == [8, 8, 512, 512]
    assert all(3 <= token < 100 for prompt in found for token in prompt)
    assert found == prompts(100, {0, 1, 2}, [8, 512])
