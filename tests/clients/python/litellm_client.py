"""LiteLLM: its documented tool loop, reassembled streams, and structured output."""

import json
import os
from typing import Any, Literal

import litellm
from pydantic import BaseModel

FORCED = {"type": "function", "function": {"name": "price_of"}}
PARAMETERS = {
    "type": "object",
    "properties": {"item": {"enum": ["sugar", "salt"]}},
    "required": ["item"],
    # Without this the demo's base would generate extra keys without end.
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "price_of", "parameters": PARAMETERS}}]
QUESTION = {"role": "user", "content": "What does sugar cost?"}


class Advice(BaseModel):
    price: Literal["raise", "lower"]


def ask(messages: list[Any], **fields: Any) -> Any:
    return litellm.completion(
        model=f"openai/{os.environ['TENORA_MODEL']}",
        api_base=os.environ["TENORA_URL"],
        api_key=os.environ["TENORA_KEY"],
        num_retries=0,
        messages=messages,
        **{"max_tokens": 60} | fields,
    )


def loop(message: Any) -> None:
    messages: list[Any] = [QUESTION, message]
    for call in message.tool_calls:
        assert json.loads(call.function.arguments)["item"] in ("sugar", "salt")
        messages.append({"tool_call_id": call.id, "role": "tool", "name": call.function.name, "content": "two euros"})
    for _ in range(2):
        messages += [ask(messages, tools=TOOLS, max_tokens=20).choices[0].message, {"role": "user", "content": "Why?"}]


def main() -> None:
    loop(ask([QUESTION], tools=TOOLS, tool_choice=FORCED).choices[0].message)
    chunks = list(ask([QUESTION], tools=TOOLS, tool_choice=FORCED, stream=True))
    loop(litellm.stream_chunk_builder(chunks, messages=[QUESTION]).choices[0].message)

    messages: list[Any] = [{"role": "user", "content": "Raise or lower the price?"}]
    for _ in range(2):
        message = ask(messages, response_format=Advice).choices[0].message
        assert Advice.model_validate_json(message.content).price in ("raise", "lower")
        messages += [message, {"role": "user", "content": "And now?"}]
    try:
        ask([{"role": "user", "content": "x " * 20_000}])
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("a prompt beyond the context was not told apart")


if __name__ == "__main__":
    main()
