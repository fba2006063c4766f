"""The published openai SDK by Responses against the live server: calls, streams, parsing, a loop with a tool."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from tests.support.server import Server

QUESTION = "Can you explain sugar?"
SCHEMA = {
    "type": "object",
    "properties": {"sku": {"enum": ["sugar", "salt"]}},
    "required": ["sku"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "name": "price_of", "parameters": SCHEMA, "strict": True}]
FORCED: Any = {"tools": TOOLS, "tool_choice": {"type": "function", "name": "price_of"}, "max_output_tokens": 100}


class Advice(BaseModel):
    price: Literal["raise", "lower"]


@pytest.fixture(scope="module")
def pricing(server: Server, keys: dict[str, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=keys["pricing"], max_retries=0) as client:
        yield client


def respond(client: openai.OpenAI, **fields: Any) -> Response:
    asked = {"model": "pricing", "input": QUESTION, "temperature": 0, "max_output_tokens": 60, **fields}
    response: Response = client.responses.create(**asked)
    # The SDK itself does not validate.
    return Response.model_validate(response.model_dump(warnings=False))


def test_the_base_and_an_adapter_answer_differently(pricing: openai.OpenAI) -> None:
    texts = {respond(pricing, model=model).output_text for model in ("demo", "pricing")}
    assert len(texts) == 2
    assert all("sugar" in text.lower() for text in texts)


def test_an_answer_has_openais_fields(pricing: openai.OpenAI) -> None:
    response = respond(pricing, instructions="Be brief.", metadata={"team": "a"})
    assert (response.object, response.status, response.model) == ("response", "completed", "pricing")
    assert (response.metadata, response.instructions) == ({"team": "a"}, "Be brief.")
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.to_dict()["store"] is False


def test_a_cut_off_answer_says_why(pricing: openai.OpenAI) -> None:
    response = respond(pricing, max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 2


def test_a_stream_adds_up_to_the_whole_answer(pricing: openai.OpenAI) -> None:
    whole = respond(pricing)
    with pricing.responses.stream(model="pricing", input=QUESTION, temperature=0, max_output_tokens=60) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_parsing_gives_the_model_of_the_caller(pricing: openai.OpenAI) -> None:
    asked: Any = {"model": "pricing", "input": "Raise or lower?", "text_format": Advice, "max_output_tokens": 40}
    parsed = pricing.responses.parse(**asked)
    assert parsed.output_parsed is not None
    assert parsed.output_parsed.price in ("raise", "lower")
    with pricing.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_parsed is not None


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_with_a_tool(pricing: openai.OpenAI, stream: bool) -> None:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    if stream:
        with pricing.responses.stream(model="pricing", input=items, **FORCED) as events:
            response: Any = events.get_final_response()
    else:
        response = pricing.responses.create(model="pricing", input=items, **FORCED)
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert json.loads(call.arguments)["sku"] in {"sugar", "salt"}
    items += response.output
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "two euros"})
    for _ in range(2):
        answer = respond(pricing, input=items, tools=TOOLS, max_output_tokens=20)
        assert answer.output
        items += [*answer.output, {"role": "user", "content": "And salt?"}]


def test_logprobs(pricing: openai.OpenAI) -> None:
    include: Any = ["message.output_text.logprobs"]
    response = respond(pricing, max_output_tokens=5, include=include, top_logprobs=3)
    content: Any = response.output[0]
    logprobs = content.content[0].logprobs
    assert len(logprobs) == 5
    for token in logprobs:
        assert token.logprob == max(top.logprob for top in token.top_logprobs)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "providerOptions.openai.store = false"),
        (
            {"input": [{"type": "item_reference", "id": "msg_1"}]},
            "input.0.type",
            "providerOptions.openai.store = false",
        ),
        ({"background": True}, "background", "background"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "no hosted tools"),
        ({"temperature": 7}, "temperature", "0 to 2"),
        ({"max_output_tokens": 100_000}, "max_output_tokens", "max_output_tokens"),
        ({"extra_body": {"cache_salt": "x"}}, "cache_salt", "cache_salt"),
        ({"input": "x y " * 20_000}, "input", "maximum context length"),
    ],
)
def test_a_bad_request_is_refused_before_the_first_byte(
    pricing: openai.OpenAI, fields: dict[str, Any], param: str, words: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        respond(pricing, stream=stream, **fields)
    assert refused.value.param in (param, None) if param == "max_output_tokens" else refused.value.param == param
    assert words in refused.value.message
    assert "Traceback" not in refused.value.message
    assert refused.value.response.headers["x-request-id"]


def test_a_response_is_not_stored(pricing: openai.OpenAI) -> None:
    response = respond(pricing, max_output_tokens=2, store=True)
    with pytest.raises(openai.NotFoundError, match="this server stores none"):
        pricing.responses.retrieve(response.id)


@pytest.mark.parametrize("model", ["nothing", "pricing@7", "supply-chain"])
def test_a_model_that_is_not_there(pricing: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        respond(pricing, model=model)
    assert refused.value.param == "model"
