"""What the engine's answers and bodies are taken for."""

import math

import pytest

from app.engine.answers import prompt_count, token_counts, without_nan


@pytest.mark.parametrize(
    ("prompt", "count"), [("one", 1), (["one", "two"], 2), ([5, 6, 7], 1), ([[5], [6, 7], [8]], 3), ([], 1), (None, 1)]
)
def test_token_ids_are_one_prompt_however_many(prompt: object, count: int) -> None:
    """Each prompt is aborted by an id of its own: an id for each token would stall everyone's event loop."""
    assert prompt_count({"prompt": prompt}) == count


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ({"prompt": [5, 6, 7]}, [3]),
        ({"prompt": [[5], [6, 7]]}, [1, 2]),
        ({"prompt": "a text"}, None),
        ({"prompt": ["a text", "and another"]}, None),
        ({"prompt": []}, None),
        ({"prompt": [5, 6, 7], "truncate_prompt_tokens": 2}, None),
        ({"messages": []}, None),
    ],
)
def test_token_ids_are_counted_without_the_engine(body: dict[str, object], counts: list[int] | None) -> None:
    assert token_counts(body) == counts


def test_what_json_has_no_word_for_becomes_null() -> None:
    answer = {"choices": [{"logprobs": [math.nan, -0.5, math.inf], "top": {"a": -math.inf}}], "id": "x", "n": 1}
    assert without_nan(answer) == {"choices": [{"logprobs": [None, -0.5, None], "top": {"a": None}}], "id": "x", "n": 1}
