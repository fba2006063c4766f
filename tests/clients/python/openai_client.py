"""openai SDK: calls, the streaming and parsing helpers, and messages sent back as SDK objects."""

import json
import os
from typing import Any, Literal

import openai
from pydantic import BaseModel

MODEL = os.environ["TENORA_MODEL"]
FORCED = {"type": "function", "function": {"name": "price_of"}}
QUESTION = {"role": "user", "content": "What does sugar cost?"}


class PriceOf(BaseModel):
    """The price of an item."""

    item: Literal["sugar", "salt"]


class Advice(BaseModel):
    price: Literal["raise", "lower"]


TOOLS = [openai.pydantic_function_tool(PriceOf, name="price_of")]
#: The same tool in the form of Responses.
FUNCTIONS: list[Any] = [{"type": "function", **tool["function"]} for tool in TOOLS]


def result_of(call: Any) -> dict[str, Any]:
    assert call.function.name == "price_of"
    assert json.loads(call.function.arguments)["item"] in ("sugar", "salt")
    return {"role": "tool", "tool_call_id": call.id, "content": "two euros"}


def loop(client: openai.OpenAI, message: Any) -> None:
    """Run the second and third turn of a tool loop."""
    messages = [QUESTION, message, *(result_of(call) for call in message.tool_calls)]
    for _ in range(2):
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, max_tokens=20)
        assert answer.choices[0].finish_reason in ("stop", "length")
        messages += [answer.choices[0].message, {"role": "user", "content": "And salt?"}]


def respond(client: openai.OpenAI, response: Any) -> None:
    """Run the second and third turn of a tool loop of Responses, with the items as the SDK has them."""
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert json.loads(call.arguments)["item"] in ("sugar", "salt")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "two euros"}
    items = [QUESTION, *response.output, output]
    for _ in range(2):
        answer = client.responses.create(model=MODEL, input=items, tools=FUNCTIONS, max_output_tokens=20)
        assert answer.status in ("completed", "incomplete")
        items += [*answer.output, {"role": "user", "content": "And salt?"}]


def responses(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "tools": FUNCTIONS, "max_output_tokens": 60, "input": [QUESTION]}
    asked["tool_choice"] = {"type": "function", "name": "price_of"}
    respond(client, client.responses.create(**asked))
    respond(client, client.responses.parse(**asked))
    with client.responses.stream(**asked) as stream:
        respond(client, stream.get_final_response())
    advised = client.responses.parse(
        model=MODEL, input="Raise or lower the price?", text_format=Advice, max_output_tokens=40
    )
    assert advised.output_parsed is not None
    assert advised.output_parsed.price in ("raise", "lower")
    first = client.responses.create(model=MODEL, input="What does sugar cost?", max_output_tokens=4)
    message = ""
    try:
        client.responses.create(model=MODEL, input="And salt?", previous_response_id=first.id)
    except openai.BadRequestError as error:
        message = error.message
    assert "Send the whole conversation in input" in message


def main() -> None:
    client = openai.OpenAI(base_url=os.environ["TENORA_URL"], api_key=os.environ["TENORA_KEY"], max_retries=0)
    asked: dict[str, Any] = {"model": MODEL, "tools": TOOLS, "tool_choice": FORCED, "max_tokens": 60}
    loop(client, client.chat.completions.create(messages=[QUESTION], **asked).choices[0].message)
    loop(client, client.chat.completions.parse(messages=[QUESTION], **asked).choices[0].message)
    with client.chat.completions.stream(messages=[QUESTION], **asked) as stream:
        loop(client, stream.get_final_completion().choices[0].message)

    messages: list[Any] = [{"role": "user", "content": "Raise or lower the price?"}]
    for _ in range(2):
        advised = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Advice, max_tokens=40)
        message = advised.choices[0].message
        assert message.parsed is not None
        assert message.parsed.price in ("raise", "lower")
        messages += [message, {"role": "user", "content": "And now?"}]
    # A truncated answer stays part of the conversation.
    cut = client.chat.completions.create(messages=[QUESTION], **asked | {"max_tokens": 2}).choices[0].message
    assert cut.tool_calls
    back: list[Any] = [
        QUESTION,
        cut,
        {"role": "tool", "tool_call_id": cut.tool_calls[0].id, "content": "What do you mean?"},
    ]
    assert client.chat.completions.create(model=MODEL, messages=back, tools=TOOLS, max_tokens=4).choices
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[QUESTION], max_tokens=2, metadata={"team": "a"}, store=True
    )
    assert raw.headers["x-tenora-ignored"] == "metadata, store"
    responses(client)


if __name__ == "__main__":
    main()
