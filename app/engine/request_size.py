"""Sizes stated by a completions body: prompts and sequences."""

from typing import Any


def prompt_count(body: dict[str, Any]) -> int:
    """Count the prompts of a completions body: one text, one list of token ids, or a list of either."""
    return len(body["prompt"]) if has_many_prompts(body) else 1


def has_many_prompts(body: dict[str, Any]) -> bool:
    """Return whether the prompt is a list of prompts."""
    prompt = body.get("prompt")
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)


def sequence_count(body: dict[str, Any]) -> int:
    """Count the sequences that the engine makes for a body: ``n`` for each prompt."""
    return prompt_count(body) * int(body.get("n") or 1)
