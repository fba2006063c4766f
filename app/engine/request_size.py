"""Sizes that a completions body states: prompts, sequences and tokens."""

from typing import Any


def prompt_count(body: dict[str, Any]) -> int:
    """How many prompts a completions body has: one text, one list of token ids, or a list of either."""
    return len(body["prompt"]) if has_many_prompts(body) else 1


def has_many_prompts(body: dict[str, Any]) -> bool:
    """Whether its prompt is a list of prompts."""
    prompt = body.get("prompt")
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)


def token_counts(body: dict[str, Any]) -> list[int] | None:
    """Tokens of each prompt, where all are token ids and none is cut; None: only who renders them can count them."""
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not prompt or "truncate_prompt_tokens" in body:
        return None
    if isinstance(prompt[0], int):
        return [len(prompt)]
    return [len(one) for one in prompt] if all(isinstance(one, list) for one in prompt) else None


def most_output(body: dict[str, Any], counts: list[int], *, default: int | None, longest: int) -> int:
    """Tokens of all sequences of a body together, at most.

    Args:
        counts: tokens of each prompt.
        default: of a sequence that says nothing of its length; None: as many as there is room for.
        longest: tokens of a prompt and its sequence together.
    """
    asked = body.get("max_completion_tokens") or body.get("max_tokens", default)
    rooms = [max(0, longest - count) for count in counts]
    return int(body.get("n") or 1) * sum(room if asked is None else min(asked, room) for room in rooms)


def sequence_count(body: dict[str, Any]) -> int:
    """How many sequences the engine makes for a body: ``n`` for each of its prompts."""
    return prompt_count(body) * int(body.get("n") or 1)
