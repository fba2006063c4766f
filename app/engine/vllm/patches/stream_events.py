"""Fast serialization of completion events, without pydantic models.

For each event of a completion vLLM makes two models. Both are validated against their schema, checked in Python for
extra fields from a client, and serialized. Yet vLLM itself set all fields one line before.
See docs/decisions/0022-less-work-per-token-in-the-api-process.md.
"""

from typing import Any

from pydantic_core import to_json
from vllm.entrypoints.openai.completion import serving
from vllm.entrypoints.openai.completion.protocol import CompletionResponseStreamChoice

from app.engine.vllm.patches.stream_nulls import CompletionStreamEvent
from app.engine.vllm.sse import NULLABLE

#: Fields that vLLM sets in an event with a token, and in its choice, in the order of serialization.
EVENT = ("id", "object", "created", "model", "choices")
CHOICE = ("index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids")
#: Options with which vLLM serializes an event.
OPTIONS = {"exclude_unset": True}


def write_plainly() -> None:
    """Patch vLLM's completion streams in this process to use the event class below."""
    serving.CompletionResponseStreamChoice, serving.CompletionStreamResponse = dict, StreamEvent


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
        if options == OPTIONS and tuple(self) == EVENT and all(map(_is_plain, choices)):
            # to_json is slower for a subclass of dict.
            return to_json(dict(self, choices=[_without_nulls(choice) for choice in choices])).decode()
        models = [CompletionResponseStreamChoice(**choice) for choice in choices]
        return CompletionStreamEvent(**self | {"choices": models}).model_dump_json(**options)


def _without_nulls(choice: StreamChoice) -> StreamChoice:
    return {name: value for name, value in choice.items() if value is not None or name in NULLABLE}


def _is_plain(choice: StreamChoice) -> bool:
    # Logprobs are a nested model.
    return tuple(choice) == CHOICE and choice["logprobs"] is None
