"""Examples of the inference routes for the OpenAPI document, by the name of their schema."""

from typing import Any

_ASKED = [{"role": "user", "content": "How fast is the A2 pump delivered?"}]
_TEXT = "The A2 pump is delivered in three days."
_CHAT_USAGE = {"prompt_tokens": 24, "completion_tokens": 11, "total_tokens": 35}
_RESPONSE = {
    "id": "resp_1f6b",
    "object": "response",
    "created_at": 1_772_357_400,
    "status": "completed",
    "completed_at": 1_772_357_401,
    "error": None,
    "incomplete_details": None,
    "model": "pricing",
    "output": [
        {
            "id": "msg_1f6b_0",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": _TEXT, "annotations": [], "logprobs": []}],
        }
    ],
    "usage": {
        "input_tokens": 24,
        "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
        "output_tokens": 11,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 35,
    },
    "background": False,
    "conversation": None,
    "instructions": None,
    "max_output_tokens": 100,
    "temperature": None,
    "top_p": None,
    "user": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt": None,
    "reasoning": None,
    "service_tier": None,
    "store": False,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "truncation": "disabled",
}
_LORAX_EVENT = '{"token": {"id": 636, "text": "The", "logprob": -0.2, "special": false}, '

#: Bodies.
BODIES: dict[str, Any] = {
    "ChatCompletionRequest": {"model": "pricing", "messages": _ASKED, "max_tokens": 100},
    "CompletionRequest": {"model": "pricing", "prompt": "The A2 pump", "max_tokens": 100},
    "DetokenizeRequest": {"model": "pricing", "tokens": [0, 761, 82]},
    "LoraxRequest": {"inputs": "The A2 pump", "parameters": {"adapter_id": "pricing", "max_new_tokens": 100}},
    "MessageRequest": {"model": "pricing", "max_tokens": 100, "messages": _ASKED},
    "ResponseRequest": {"model": "pricing", "input": _ASKED[0]["content"], "max_output_tokens": 100},
    "TokenCountRequest": {"model": "pricing", "messages": _ASKED},
    "TokenizeRequest": {"model": "pricing", "prompt": "The A2 pump", "return_token_strs": True},
}

#: Whole answers.
ANSWERS: dict[str, Any] = {
    "ChatCompletion": {
        "id": "chatcmpl-1f6b",
        "object": "chat.completion",
        "created": 1_772_357_400,
        "model": "pricing",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": _TEXT, "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": _CHAT_USAGE,
    },
    "Completion": {
        "id": "cmpl-1f6b",
        "object": "text_completion",
        "created": 1_772_357_400,
        "model": "pricing",
        "choices": [
            {"index": 0, "text": " is delivered in three days.", "finish_reason": "stop", "logprobs": None},
        ],
        "usage": _CHAT_USAGE,
    },
    "DetokenizedText": {"prompt": "<s>Hello"},
    "LoraxAnswer": {"generated_text": " is delivered in three days."},
    "Message": {
        "id": "msg_1f6b",
        "type": "message",
        "role": "assistant",
        "model": "pricing",
        "content": [{"type": "text", "text": _TEXT}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 8,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 16,
            "output_tokens": 11,
        },
    },
    "ResponseObject": _RESPONSE,
    "TokenCount": {"input_tokens": 24},
    "Tokens": {"count": 3, "max_model_len": 8192, "tokens": [0, 761, 82], "token_strs": ["<s>", "Hell", "o"]},
}

#: Streams, by the component of an event's data.
EVENTS: dict[str, str] = {
    "ChatEventData": 'data: {"id":"chatcmpl-1f6b","object":"chat.completion.chunk","created":1772357400,'
    '"model":"pricing","choices":[{"index":0,"delta":{"content":"The"},"finish_reason":null}]}\n\ndata: [DONE]\n\n',
    "CompletionEventData": 'data: {"id":"cmpl-1f6b","object":"text_completion","created":1772357400,"model":"pricing",'
    '"choices":[{"index":0,"text":" is","finish_reason":null,"logprobs":null}]}\n\ndata: [DONE]\n\n',
    "LoraxEventData": f'data:{_LORAX_EVENT}"generated_text": null, "details": null}}\n\n',
    "MessageEventData": 'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    '"delta":{"type":"text_delta","text":"The"}}\n\n',
    "ResponseEventData": 'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
    '"sequence_number":4,"item_id":"msg_1f6b_0","output_index":0,"content_index":0,"delta":"The","logprobs":[]}\n\n',
}
