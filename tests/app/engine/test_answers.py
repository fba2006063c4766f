"""What the engine's answers and bodies are taken for."""

import pytest

from app.engine.answers import prompt_count


@pytest.mark.parametrize(
    ("prompt", "count"), [("one", 1), (["one", "two"], 2), ([5, 6, 7], 1), ([[5], [6, 7], [8]], 3), ([], 1), (None, 1)]
)
def test_token_ids_are_one_prompt_however_many(prompt: object, count: int) -> None:
    """Each prompt is aborted by an id of its own: an id for each token would stall everyone's event loop."""
    assert prompt_count({"prompt": prompt}) == count
