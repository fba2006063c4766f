"""Stream events have no null fields but those that OpenAI's events have."""

import json
from typing import Any

import pytest
from vllm.entrypoints.generate.base.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall, UsageInfo
from vllm.entrypoints.openai.chat_completion import protocol as chat_protocol
from vllm.entrypoints.openai.chat_completion import serving as chat_serving
from vllm.entrypoints.openai.completion import serving

from app.engine.vllm.patches.stream_nulls import ChatStreamEvent, CompletionStreamEvent, omit_nulls

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1764240000, "model": "acme/pricing@3"}


def chat_event(delta: DeltaMessage, **choice: Any) -> dict[str, Any]:
    """Build a chat event with the fields that vLLM sets, and parse the text that is sent."""
    one = chat_protocol.ChatCompletionResponseStreamChoice(
        index=0,
        delta=delta,
        **{"logprobs": None, "finish_reason": None, "stop_reason": None, "token_ids": None} | choice,
    )
    usage = UsageInfo(prompt_tokens=3, completion_tokens=1, total_tokens=4, completion_tokens_details=None)
    event = ChatStreamEvent(
        **HEAD,
        choices=[one],
        prompt_token_ids=None,
        prompt_text=None,
        usage=usage,
    )
    written: dict[str, Any] = json.loads(event.model_dump_json(exclude_unset=True))
    assert set(written["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}
    return written


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        (DeltaMessage(role="assistant", content=""), {"role": "assistant", "content": ""}),
        (DeltaMessage(content=" a", reasoning=None), {"content": " a"}),
        (DeltaMessage(content=None, reasoning=None), {"content": None}),
        (DeltaMessage(), {}),
        (
            DeltaMessage(
                tool_calls=[DeltaToolCall(index=0, id=None, function=DeltaFunctionCall(name=None, arguments="{"))]
            ),
            {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        ),
        (DeltaMessage(tool_calls=[DeltaToolCall(index=0, function=None)]), {"tool_calls": [{"index": 0}]}),
    ],
)
def test_an_event_of_a_chat_has_openais_fields_and_no_other(delta: DeltaMessage, expected: dict[str, Any]) -> None:
    event = chat_event(delta)
    assert set(event) == {*HEAD, "choices", "usage"}
    assert event["choices"] == [{"index": 0, "delta": expected, "logprobs": None, "finish_reason": None}]


def test_an_event_of_a_chat_keeps_what_is_not_null() -> None:
    event = chat_event(DeltaMessage(content="a"), finish_reason="stop", stop_reason="END", token_ids=[5])
    assert event["choices"] == [
        {
            "index": 0,
            "delta": {"content": "a"},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": "END",
            "token_ids": [5],
        }
    ]


def test_vllms_streams_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    completions, chats = "CompletionStreamResponse", "ChatCompletionStreamResponse"
    monkeypatch.setattr(serving, completions, getattr(serving, completions))
    monkeypatch.setattr(chat_serving, chats, getattr(chat_serving, chats))
    omit_nulls()
    assert serving.CompletionStreamResponse is CompletionStreamEvent
    assert chat_serving.ChatCompletionStreamResponse is ChatStreamEvent
    assert completions in serving.OpenAIServingCompletion.completion_stream_generator.__code__.co_names
    assert chats in chat_serving.OpenAIServingChat.chat_completion_stream_generator.__code__.co_names
