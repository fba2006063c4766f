"""The published anthropic SDK against the live server, with a tenant's key and the URL as the only changes."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message

from tests.support.server import Server

QUESTION: Any = {"role": "user", "content": "Can you explain sugar?"}
SCHEMA = {
    "type": "object",
    "properties": {"sku": {"enum": ["sugar", "salt"]}},
    "required": ["sku"],
    "additionalProperties": False,
}
#: The SDK has no parameters of sampling any more.
GREEDY = {"temperature": 0}
TOOLS: Any = [{"name": "price_of", "description": "The price.", "input_schema": SCHEMA}]
FORCED: Any = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "price_of"}, "max_tokens": 100}


@pytest.fixture(scope="module")
def pricing(server: Server, keys: dict[str, str]) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=keys["pricing"], max_retries=0) as client:
        yield client


def say(client: anthropic.Anthropic, **fields: Any) -> Message:
    asked = {"model": "pricing", "messages": [QUESTION], "max_tokens": 60, "extra_body": GREEDY, **fields}
    message: Message = client.messages.create(**asked)
    return Message.model_validate(message.model_dump(warnings=False))


def text(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_the_base_and_an_adapter_answer_differently(pricing: anthropic.Anthropic) -> None:
    texts = {text(say(pricing, model=model)) for model in ("demo", "pricing")}
    assert len(texts) == 2
    assert all("sugar" in one.lower() for one in texts)


def test_a_stream_adds_up_to_the_whole_answer(pricing: anthropic.Anthropic) -> None:
    whole = say(pricing)
    asked: Any = {"model": "pricing", "messages": [QUESTION], "max_tokens": 60, "extra_body": GREEDY}
    with pricing.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == text(whole)
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    kinds = [event.type for event in pricing.messages.create(stream=True, **asked)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_stop_reasons(pricing: anthropic.Anthropic) -> None:
    assert say(pricing).stop_reason == "end_turn"
    assert say(pricing, max_tokens=2).stop_reason == "max_tokens"
    stopped = say(pricing, stop_sequences=["zzz", "price"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "price")
    assert "price" not in text(stopped)


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_with_a_tool(pricing: anthropic.Anthropic, stream: bool) -> None:
    turns: list[Any] = [QUESTION]
    if stream:
        with pricing.messages.stream(model="pricing", messages=turns, **FORCED) as events:
            message: Any = events.get_final_message()
    else:
        message = say(pricing, **FORCED)
    (use,) = message.content
    assert (message.stop_reason, use.type, use.name) == ("tool_use", "tool_use", "price_of")
    assert use.input["sku"] in {"sugar", "salt"}
    result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "two euros"}]}
    turns += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    for _ in range(2):
        answer = say(pricing, messages=turns, tools=TOOLS, max_tokens=20)
        assert answer.content
        turns += [{"role": "assistant", "content": answer.content}, QUESTION]


def test_counted_tokens_are_those_of_the_answer(pricing: anthropic.Anthropic) -> None:
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    counted = pricing.messages.count_tokens(model="pricing", messages=[QUESTION], system=system, tools=TOOLS)
    for _ in range(2):
        usage = say(pricing, system=system, tools=TOOLS, max_tokens=2).usage
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens


def test_structured_output(pricing: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    message = say(pricing, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert '"ok"' in text(message)


IMAGE: Any = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}}
ERRORS: dict[str, tuple[dict[str, Any], type[anthropic.APIStatusError], str]] = {
    "a temperature": ({"extra_body": {"temperature": 7}}, anthropic.BadRequestError, "temperature"),
    "an image": ({"messages": [{"role": "user", "content": [IMAGE]}]}, anthropic.BadRequestError, "'image'"),
    "a tool of a server": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        anthropic.BadRequestError,
        "runs no tools",
    ),
    "a beginning of the answer": (
        {"messages": [QUESTION, {"role": "assistant", "content": "Once"}]},
        anthropic.BadRequestError,
        "prefilled",
    ),
    "too many tokens": ({"max_tokens": 20_000}, anthropic.BadRequestError, "max_tokens"),
    "a long prompt": (
        {"messages": [{"role": "user", "content": "x y " * 20_000}]},
        anthropic.BadRequestError,
        "maximum context length",
    ),
    "an absent model": ({"model": "nothing"}, anthropic.NotFoundError, "no model"),
    "another tenant's model": ({"model": "supply-chain"}, anthropic.NotFoundError, "no model"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "kind", "words"), ERRORS.values(), ids=ERRORS)
def test_an_error_has_the_class_of_the_sdk(
    pricing: anthropic.Anthropic,
    fields: dict[str, Any],
    kind: type[anthropic.APIStatusError],
    words: str,
    stream: bool,
) -> None:
    with pytest.raises(kind) as refused:
        say(pricing, stream=stream, **fields)
    body: Any = refused.value.body
    assert (body["type"], refused.value.request_id) == ("error", refused.value.response.headers["x-request-id"])
    assert words in body["error"]["message"]


def test_keys_and_scopes_have_their_classes(server: Server, keys: dict[str, str]) -> None:
    with (
        anthropic.Anthropic(base_url=server.url, api_key="tnr_x", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        say(client)
    with (
        anthropic.Anthropic(base_url=server.url, api_key=server.admin_key, max_retries=0) as client,
        pytest.raises(anthropic.PermissionDeniedError),
    ):
        say(client)
    # An auth token works as well as an API key.
    with anthropic.Anthropic(base_url=server.url, auth_token=keys["pricing"], max_retries=0) as client:
        assert say(client, max_tokens=1).content


def test_a_limit_has_its_class(server: Server) -> None:
    key = server.tenant("hurried")
    with server.client(server.admin_key) as admin:
        limits = {"limits": {"requests_per_minute": 1}}
        assert admin.patch("/admin/tenants/hurried", json=limits).status_code == 200
    with anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0) as client:
        assert say(client, model="demo", max_tokens=1).content
        with pytest.raises(anthropic.RateLimitError) as refused:
            say(client, model="demo", max_tokens=1)
    assert int(refused.value.response.headers["retry-after"]) > 0
