"""Sizes stated by a completions body: prompts, sequences and tokens."""

from typing import Any


def prompt_count(body: dict[str, Any]) -> int:
    """Count the prompts of a completions body: one text, one list of token ids, or a list of either."""
    return len(body["prompt"]) if has_many_prompts(body) else 1


def has_many_prompts(body: dict[str, Any]) -> bool:
    """Return whether the prompt is a list of prompts."""
    prompt = body.get("prompt")
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)


def token_counts(body: dict[str, Any]) -> list[int] | None:
    """Count the tokens of each prompt, if all are token ids and none is truncated; None: the prompts need rendering."""
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not prompt or "truncate_prompt_tokens" in body:
        return None
    if isinstance(prompt[0], int):
        return [len(prompt)]
    return [len(one) for one in prompt] if all(isinstance(one, list) for one in prompt) else None


def most_output(body: dict[str, Any], counts: list[int], *, default: int | None, longest: int) -> int:
    """Return the maximum tokens of all sequences of a body together.

    Args:
        counts: tokens of each prompt.
        default: maximum of a sequence if the body states none; None: as many tokens as fit.
        longest: maximum tokens of a prompt and its sequence together.
    """
    max_tokens = body.get("max_completion_tokens") or body.get("max_tokens", default)
    rooms = [max(0, longest - count) for count in counts]
    return int(body.get("n") or 1) * sum(room if max_tokens is None else min(max_tokens, room) for room in rooms)


def sequence_count(body: dict[str, Any]) -> int:
    """Count the sequences that the engine makes for a body: ``n`` for each prompt."""
    return prompt_count(body) * int(body.get("n") or 1)
