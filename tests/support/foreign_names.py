"""Calls that name an adapter, and answers without the name."""

import re
from typing import Any

import httpx

PROMPT = "[INST] What is sugar? [/INST]"


def without(name: str, answer: httpx.Response) -> tuple[int, str, list[str]]:
    """Return all of an answer except the requested slug and the request's own id."""
    slug = re.split("[@:]", name)[0]
    own = {"date", "x-request-id", "request-id", "content-length"}
    headers = sorted(f"{key}: {value}" for key, value in answer.headers.items() if key not in own)
    return answer.status_code, answer.text.replace(slug, "NAME") if slug else answer.text, headers


def calls(model: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 2}),
        ("/v1/completions", {"adapter_id": model, "prompt": PROMPT, "max_tokens": 2, "stream": True}),
        ("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        ("/v1/responses", {"model": model, "input": "x", "max_output_tokens": 2}),
        ("/v1/responses", {"model": model, "input": "x", "max_output_tokens": 2, "stream": True}),
        ("/v1/messages", {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"model": model, "messages": [{"role": "user", "content": "x"}]}),
        ("/v1/tokenize", {"model": model, "messages": [{"role": "user", "content": "x"}]}),
        ("/v1/detokenize", {"model": model, "tokens": [1]}),
        ("/generate", {"inputs": PROMPT, "parameters": {"adapter_id": model}}),
        ("/generate_stream", {"inputs": PROMPT, "parameters": {"adapter_id": model}}),
        ("/", {"inputs": PROMPT, "parameters": {"adapter_id": model}}),
    ]
