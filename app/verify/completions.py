"""Requests and responses of ``/v1/completions`` for a verification: greedy, with the logprob of each token."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

from app.verify.comparison import Answer

PATH = "/v1/completions"


def request_body(model: str, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
    }


def answer_of(prompt: Sequence[int], body: Mapping[str, Any]) -> Answer:
    choice = body["choices"][0]
    # JSON has no NaN, so the server writes null.
    logprobs = (nan if logprob is None else logprob for logprob in choice["logprobs"]["token_logprobs"])
    return Answer(tuple(prompt), tuple(choice["token_ids"]), tuple(logprobs))
