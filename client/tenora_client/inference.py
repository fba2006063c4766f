"""Requests and answers of inference: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from tenora_client.errors import foreign_answer

CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Generation:
    """Generated text.

    Attributes:
        text: text of the first choice.
        model: name of the model, as the request gave it.
        version: the version that answered, such as ``quotes@3``; None for the base.
        finish_reason: ``stop``, ``length`` or ``tool_calls``.
        usage: numbers of tokens.
        body: the whole answer as the server sent it.
    """

    text: str
    model: str
    version: str | None
    finish_reason: str | None
    usage: Mapping[str, Any]
    body: Mapping[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return self.text


def chat_body(
    model: str, messages: str | Sequence[Mapping[str, Any]], system: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the body of a chat. ``options`` are OpenAI's fields; those that are None are left out."""
    given = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    first = [] if system is None else [{"role": "system", "content": system}]
    return {"model": model, "messages": [*first, *given], **_given(options)}


def completion_body(model: str, prompt: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Build the body of a completion."""
    return {"model": model, "prompt": prompt, **_given(options)}


def generation(body: Any, headers: Mapping[str, str]) -> Generation:
    """Read a whole answer.

    Raises:
        ForeignAnswer: the answer has no choices.
    """
    choice = _choice(body)
    if choice is None:
        raise foreign_answer(HTTPStatus.OK, str(body))
    return Generation(
        text=_text(choice),
        model=str(body.get("model", "")),
        version=headers.get("x-tenora-adapter"),
        finish_reason=choice.get("finish_reason"),
        usage=body.get("usage") or {},
        body=body,
    )


def piece(event: Mapping[str, Any]) -> str:
    """Return the text of one event of a stream, empty if it has none."""
    choice = _choice(event)
    return "" if choice is None else _text(choice)


def _choice(body: Any) -> dict[str, Any] | None:
    choices = body.get("choices") if isinstance(body, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _text(choice: Mapping[str, Any]) -> str:
    part = choice.get("message") or choice.get("delta") or choice
    return str(part.get("content") or part.get("text") or "")


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
