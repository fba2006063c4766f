"""Parsing of the engine's request bodies, answers and server-sent events."""

import math

import pytest
from vllm.entrypoints.generate.base.protocol import FunctionCall, ToolCall, UsageInfo
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatMessage,
)
from vllm.entrypoints.openai.completion.protocol import CompletionLogProbs, CompletionResponse, CompletionResponseChoice

from app.engine.request_size import prompt_count
from app.engine.vllm.sse import without_nan, without_nulls


@pytest.mark.parametrize(
    ("prompt", "count"), [("one", 1), (["one", "two"], 2), ([5, 6, 7], 1), ([[5], [6, 7], [8]], 3), ([], 1), (None, 1)]
)
def test_token_ids_are_one_prompt_however_many(prompt: object, count: int) -> None:
    """Each prompt is aborted by its own id. One id per token would stall the event loop."""
    assert prompt_count({"prompt": prompt}) == count


CHAT = {"id": "c", "created": 1, "model": "m", "usage": UsageInfo(prompt_tokens=3, total_tokens=4, completion_tokens=1)}
USAGE = {"prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1}


def test_a_chat_answer_has_only_openais_fields() -> None:
    message = ChatMessage(role="assistant", content="Hi.", reasoning=None)
    choice = ChatCompletionResponseChoice(index=0, message=message, finish_reason="length")
    answer = without_nulls(ChatCompletionResponse(**CHAT, choices=[choice]))
    assert answer == {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi.", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": USAGE,
    }


def test_a_call_of_a_tool_has_no_content_and_says_so() -> None:
    call = ToolCall(id="1", function=FunctionCall(name="f", arguments="{}"))
    choice = ChatCompletionResponseChoice(index=0, message=ChatMessage(role="assistant", tool_calls=[call]))
    answer = without_nulls(ChatCompletionResponse(**CHAT, choices=[choice]))
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }


def test_a_completion_keeps_what_was_asked_for() -> None:
    logprobs = CompletionLogProbs(
        text_offset=[0, 1], token_logprobs=[None, -0.5], tokens=["a", "b"], top_logprobs=[None]
    )
    asked = CompletionResponseChoice(index=0, text="ab", logprobs=logprobs, token_ids=[1, 2], stop_reason="b")
    plain = CompletionResponseChoice(index=1, text="")
    answer = without_nulls(CompletionResponse(**CHAT, choices=[asked, plain]))
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage"}
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "ab",
            "logprobs": {
                "text_offset": [0, 1],
                "token_logprobs": [None, -0.5],
                "tokens": ["a", "b"],
                "top_logprobs": [None],
            },
            "finish_reason": None,
            "stop_reason": "b",
            "token_ids": [1, 2],
        },
        {"index": 1, "text": "", "logprobs": None, "finish_reason": None},
    ]


def test_what_json_has_no_word_for_becomes_null() -> None:
    answer = {"choices": [{"logprobs": [math.nan, -0.5, math.inf], "top": {"a": -math.inf}}], "id": "x", "n": 1}
    assert without_nan(answer) == {"choices": [{"logprobs": [None, -0.5, None], "top": {"a": None}}], "id": "x", "n": 1}
