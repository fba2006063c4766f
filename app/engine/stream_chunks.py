"""Events of a streamed completion, written out without a pydantic model around every token.

vLLM makes two models for each: both are checked against their schema, then, in Python, for fields that a client might
have added, and then written out. All of it had been set a line before. With sixteen streams at a time that was a ninth
of what the API process takes.
"""

from typing import Any

from pydantic_core import to_json
from vllm.entrypoints.openai.completion import serving
from vllm.entrypoints.openai.completion.protocol import CompletionResponseStreamChoice, CompletionStreamResponse

#: What vLLM sets of an event that has a token, and of the choice in it, in the order in which it is written out.
EVENT = ("id", "object", "created", "model", "choices")
CHOICE = ("index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids")
#: How vLLM has it written out.
OPTIONS = {"exclude_unset": True}


def write_plainly() -> None:
    """Let vLLM's streams of this process use what is here."""
    serving.CompletionResponseStreamChoice, serving.CompletionStreamResponse = dict, StreamEvent


#: A choice of an event as vLLM sets it; see vLLM's ``CompletionResponseStreamChoice``.
StreamChoice = dict[str, Any]


class StreamEvent(dict[str, Any]):
    """An event as vLLM sets it, at once and afterwards; see vLLM's ``CompletionStreamResponse``."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def model_dump_json(self, **options: Any) -> str:
        """The text that vLLM's model would give; of what is not plain that model makes it."""
        choices: list[StreamChoice] = self["choices"]
        if options == OPTIONS and tuple(self) == EVENT and all(map(_is_plain, choices)):
            # Of a subclass of dict this takes three times as long.
            return to_json(dict(self)).decode()
        models = [CompletionResponseStreamChoice(**choice) for choice in choices]
        text: str = CompletionStreamResponse(**self | {"choices": models}).model_dump_json(**options)
        return text


def _is_plain(choice: StreamChoice) -> bool:
    # Logprobs are a model of their own.
    return tuple(choice) == CHOICE and choice["logprobs"] is None
