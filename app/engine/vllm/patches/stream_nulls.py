"""Stream events without vLLM's own null fields, which OpenAI's events do not have."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from vllm.entrypoints.openai.chat_completion import serving as chat_serving
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse
from vllm.entrypoints.openai.completion import serving
from vllm.entrypoints.openai.completion.protocol import CompletionStreamResponse

from app.engine.vllm.sse import NULLABLE


def omit_nulls() -> None:
    """Patch vLLM's streams in this process to use the event classes below."""
    serving.CompletionStreamResponse = CompletionStreamEvent
    chat_serving.ChatCompletionStreamResponse = ChatStreamEvent


class CompletionStreamEvent(CompletionStreamResponse):  # type: ignore[misc]  # vLLM has no stubs
    """Completion event without vLLM's own null fields."""

    def model_dump_json(self, **options: Any) -> str:
        _unset_nulls(self)
        text: str = super().model_dump_json(**options)
        return text


class ChatStreamEvent(ChatCompletionStreamResponse):  # type: ignore[misc]
    """Chat event without vLLM's own null fields."""

    def model_dump_json(self, **options: Any) -> str:
        _unset_nulls(self)
        text: str = super().model_dump_json(**options)
        return text


def _unset_nulls(event: CompletionStreamEvent | ChatStreamEvent) -> None:
    """Mark null fields as unset. vLLM does not serialize unset fields."""
    for model in _models(event):
        model.model_fields_set.difference_update(
            [name for name in model.model_fields_set - NULLABLE if getattr(model, name) is None]
        )


def _models(event: CompletionStreamEvent | ChatStreamEvent) -> Iterator[BaseModel]:
    yield event
    if event.usage:
        yield event.usage
    for choice in event.choices:
        yield choice
        if isinstance(event, ChatStreamEvent):
            yield choice.delta
            for call in choice.delta.tool_calls:
                yield call
                if call.function:
                    yield call.function
