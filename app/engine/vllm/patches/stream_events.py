"""Fast serialization of stream events: without vLLM's own null fields, and without pydantic models for completions.

For each event of a completion vLLM makes two models. Both are validated against their schema, checked in Python for
extra fields from a client, and serialized. Yet vLLM itself set all fields one line before.
See docs/decisions/0022-less-work-per-token-in-the-api-process.md.
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

#: Fields that vLLM sets in an event with a token, and in its choice, in the order of serialization.
EVENT = ("id", "object", "created", "model", "choices")
CHOICE = ("index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids")
#: Options with which vLLM serializes an event.
OPTIONS = {"exclude_unset": True}


def write_plainly() -> None:
    """Patch vLLM's streams in this process to use the event classes below."""
    serving.CompletionResponseStreamChoice, serving.CompletionStreamResponse = dict, StreamEvent
    chat_serving.ChatCompletionStreamResponse = ChatStreamEvent


#: Choice of an event, as vLLM sets it; see vLLM's ``CompletionResponseStreamChoice``.
StreamChoice = dict[str, Any]


class StreamEvent(dict[str, Any]):
    """Event as vLLM creates and changes it; see vLLM's ``CompletionStreamResponse``."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def model_dump_json(self, **options: Any) -> str:
        """Serialize as vLLM's model does, but without its null fields. Events that are not plain use that model."""
        choices: list[StreamChoice] = self["choices"]
        if options == OPTIONS:
            plain = tuple(self) == EVENT and all(map(_is_plain, choices))
            choices = [_without_nulls(choice) for choice in choices]
            if plain:
                # to_json is slower for a subclass of dict.
                return to_json(dict(self, choices=choices)).decode()
        models = [CompletionResponseStreamChoice(**choice) for choice in choices]
        text: str = CompletionStreamResponse(**self | {"choices": models}).model_dump_json(**options)
        return text


class ChatStreamEvent(ChatCompletionStreamResponse):  # type: ignore[misc]
    """Chat event without vLLM's own null fields."""

    def model_dump_json(self, **options: Any) -> str:
        for model in _models(self):
            # pydantic does not serialize unset fields.
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
    # Logprobs are a nested model.
    return tuple(choice) == CHOICE and choice["logprobs"] is None
