"""What the engine's answers and bodies are taken for."""

import math

import pytest

from app.engine.answers import most_output, prompt_count, token_counts, without_nan


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


@pytest.mark.parametrize(
    ("body", "counts", "default", "most"),
    [
        ({"max_tokens": 5}, [3], 16, 5),
        ({}, [3], 16, 16),
        ({"max_tokens": None}, [3], 16, 97),
        ({}, [3], None, 97),
        ({"max_tokens": 5, "n": 4}, [3, 8], 16, 40),
        ({"max_tokens": 50}, [60, 99, 100, 120], 16, 41),
        ({"max_completion_tokens": 7, "max_tokens": 5}, [3], None, 7),
        ({"n": None}, [90], 16, 10),
    ],
)
def test_a_sequence_has_what_it_asks_for_and_what_there_is_room_for(
    body: dict[str, object], counts: list[int], default: int | None, most: int
) -> None:
    assert most_output(body, counts, default=default, longest=100) == most


def test_what_json_has_no_word_for_becomes_null() -> None:
    answer = {"choices": [{"logprobs": [math.nan, -0.5, math.inf], "top": {"a": -math.inf}}], "id": "x", "n": 1}
    assert without_nan(answer) == {"choices": [{"logprobs": [None, -0.5, None], "top": {"a": None}}], "id": "x", "n": 1}
