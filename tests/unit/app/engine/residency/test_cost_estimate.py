"""Cost estimate of a request."""

import time
from typing import Any

import pytest

from adapters.identity import VersionKey
from app.engine.port import Endpoint, EngineRequest
from app.engine.residency.cost_estimate import admission_request

KEY = VersionKey(7, "0" * 64, "1" * 64, 1, 1)


def request(body: dict[str, Any], **fields: Any) -> EngineRequest:
    endpoint = Endpoint.CHAT if "messages" in body else Endpoint.COMPLETIONS
    return EngineRequest("r", endpoint, body, "m", None, "salt", **fields)


@pytest.mark.parametrize(
    ("body", "prompts", "output_tokens", "sequences"),
    [
        ({"prompt": [5] * 30, "max_tokens": 9}, (30,), 9, 1),
        ({"prompt": [[5] * 30, [6] * 3], "max_tokens": 9, "n": 2}, (30, 3), 9, 4),
        ({"prompt": "four letters a token", "max_tokens": 0}, (6,), 0, 1),
        ({"prompt": ["", "abcd"], "max_tokens": 1}, (1, 2), 1, 2),
        ({"prompt": "\u6c49" * 8 + "\U0001f34b"}, (8,), 256, 1),
    ],
)
def test_tokens_are_counted_or_guessed(
    body: dict[str, Any], prompts: tuple[int, ...], output_tokens: int, sequences: int
) -> None:
    made = admission_request(request(body))
    assert (made.prompts, made.output_tokens, made.sequences) == (prompts, output_tokens, sequences)
    assert (made.version_id, made.deadline) == (None, None)


def test_a_rendered_prompt_is_what_counts() -> None:
    made = admission_request(request({"messages": [{"role": "user", "content": "x"}]}, prompt="y" * 400))
    assert made.prompts == (101,)


def test_tokens_that_are_known_are_not_guessed() -> None:
    assert admission_request(request({"prompt": ["a", "b"]}, token_ids=((1,) * 30, (1,) * 3))).prompts == (30, 3)


def test_whose_it_is_and_until_when() -> None:
    before = time.monotonic()
    made = admission_request(
        EngineRequest("r", Endpoint.COMPLETIONS, {"prompt": "x"}, "m", KEY, "salt", None, "retail", 4.0, 2.5)
    )
    assert (made.tenant, made.weight, made.version_id) == ("retail", 4.0, 7)
    assert made.deadline is not None
    assert before + 2.5 <= made.deadline <= time.monotonic() + 2.5
