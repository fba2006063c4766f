"""anthropic SDK: messages, the streaming helper, a tool loop, counts of tokens, and its error classes."""

import os
from typing import Any

import anthropic

MODEL = os.environ["TENORA_MODEL"]
URL = os.environ["TENORA_URL"].removesuffix("/v1")
QUESTION: Any = {"role": "user", "content": "What does sugar cost?"}
SCHEMA = {
    "type": "object",
    "properties": {"item": {"enum": ["sugar", "salt"]}},
    "required": ["item"],
    "additionalProperties": False,
}
#: The SDK has no parameters of sampling any more.
GREEDY = {"temperature": 0}
TOOLS: Any = [{"name": "price_of", "description": "The price of an item.", "input_schema": SCHEMA}]


def loop(client: anthropic.Anthropic, message: Any) -> None:
    """Run the second and third turn of a tool loop, with the content as the SDK has it."""
    (use,) = [block for block in message.content if block.type == "tool_use"]
    assert message.stop_reason == "tool_use"
    assert use.name == "price_of"
    assert use.input["item"] in ("sugar", "salt")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "two euros"}
    turns: list[Any] = [QUESTION, {"role": "assistant", "content": message.content}]
    turns.append({"role": "user", "content": [result]})
    for _ in range(2):
        answer = client.messages.create(model=MODEL, max_tokens=20, messages=turns, tools=TOOLS)
        assert answer.stop_reason in ("end_turn", "max_tokens")
        turns += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "And salt?"}]


def refused(kind: type[anthropic.APIStatusError], call: Any) -> anthropic.APIStatusError:
    found = None
    try:
        call()
    except kind as error:
        found = error
    assert found is not None, f"There was no {kind.__name__}."
    assert found.request_id
    assert found.body["type"] == "error"  # type: ignore[index, call-overload]
    return found


def main() -> None:
    client = anthropic.Anthropic(base_url=URL, api_key=os.environ["TENORA_KEY"], max_retries=0)
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 60, "messages": [QUESTION], "tools": TOOLS}
    forced = asked | {"tool_choice": {"type": "tool", "name": "price_of"}}
    loop(client, client.messages.create(**forced))
    with client.messages.stream(**forced) as stream:
        loop(client, stream.get_final_message())

    plain: dict[str, Any] = {"model": MODEL, "messages": [QUESTION], "system": "Be brief.", "extra_body": GREEDY}
    whole = client.messages.create(max_tokens=20, **plain)
    with client.messages.stream(max_tokens=20, **plain) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    counted = client.messages.count_tokens(model=MODEL, messages=[QUESTION], system="Be brief.")
    for message in (whole, final):
        cached = message.usage.cache_read_input_tokens or 0
        assert message.usage.input_tokens + cached == counted.input_tokens

    def ask(client: anthropic.Anthropic = client, **fields: Any) -> Any:
        return client.messages.create(**{"model": MODEL, "max_tokens": 4, "messages": [QUESTION], **fields})

    assert "temperature" in str(refused(anthropic.BadRequestError, lambda: ask(extra_body={"temperature": 7})))
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}}
    refused(anthropic.BadRequestError, lambda: ask(messages=[{"role": "user", "content": [image]}]))
    refused(anthropic.NotFoundError, lambda: ask(model="nothing"))
    with anthropic.Anthropic(base_url=URL, api_key="tnr_x", max_retries=0) as stranger:
        refused(anthropic.AuthenticationError, lambda: ask(stranger))
    raw = client.messages.with_raw_response.create(
        model=MODEL, max_tokens=2, messages=[QUESTION], metadata={"user_id": "u"}
    )
    assert raw.headers["x-tenora-ignored"] == "metadata"


if __name__ == "__main__":
    main()
