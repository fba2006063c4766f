"""Events of streams as they go out: without vLLM's own null fields, and, of a completion, without a pydantic model.

For each event of a completion vLLM makes two models: both are checked against their schema, then, in Python, for fields
that a client might have added, and then written out. All of it had been set a line before. With sixteen streams at a
time that was a ninth of what the API process takes.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json
from vllm.entrypoints.openai.chat_completion import serving as chat_serving
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse
from vllm.entrypoints.openai.completion import serving
from vllm.entrypoints.openai.completion.protocol import CompletionResponseStreamChoice, CompletionStreamResponse

from app.engine.vllm.sse import NULLABLE

#: What vLLM sets of an event that has a token, and of the choice in it, in the order in which it is written out.
EVENT = ("id", "object", "created", "model", "choices")
CHOICE = ("index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids")
#: How vLLM has it written out.
OPTIONS = {"exclude_unset": True}


def write_plainly() -> None:
    """Let vLLM's streams of this process use what is here."""
    serving.CompletionResponseStreamChoice, serving.CompletionStreamResponse = dict, StreamEvent
    chat_serving.ChatCompletionStreamResponse = ChatStreamEvent


#: A choice of an event as vLLM sets it; see vLLM's ``CompletionResponseStreamChoice``.
StreamChoice = dict[str, Any]


class StreamEvent(dict[str, Any]):
    """An event as vLLM sets it, at once and afterwards; see vLLM's ``CompletionStreamResponse``."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def model_dump_json(self, **options: Any) -> str:
        """The text that vLLM's model would give, without its null fields; of what is not plain that model makes it."""
        choices: list[StreamChoice] = self["choices"]
        if options == OPTIONS:
            plain = tuple(self) == EVENT and all(map(_is_plain, choices))
            choices = [_without_nulls(choice) for choice in choices]
            if plain:
                # Of a subclass of dict this takes three times as long.
                return to_json(dict(self, choices=choices)).decode()
        models = [CompletionResponseStreamChoice(**choice) for choice in choices]
        text: str = CompletionStreamResponse(**self | {"choices": models}).model_dump_json(**options)
        return text


class ChatStreamEvent(ChatCompletionStreamResponse):  # type: ignore[misc]
    """An event of a chat, which leaves vLLM's null fields out."""

    def model_dump_json(self, **options: Any) -> str:
        for model in _models(self):
            # Fields that were not set are not written.
            model.model_fields_set.difference_update(
                [name for name in model.model_fields_set - NULLABLE if getattr(model, name) is None]
            )
        text: str = super().model_dump_json(**options)
        return text


def _models(event: ChatStreamEvent) -> Iterator[BaseModel]:
    yield event
    if event.usage:
        yield event.usage
    for choice in event.choices:
        yield from (choice, choice.delta)
        for call in choice.delta.tool_calls:
            yield call
            if call.function:
                yield call.function


def _without_nulls(choice: StreamChoice) -> StreamChoice:
    return {name: value for name, value in choice.items() if value is not None or name in NULLABLE}


def _is_plain(choice: StreamChoice) -> bool:
    # Logprobs are a model of their own.
    return tuple(choice) == CHOICE and choice["logprobs"] is None
