"""The published openai SDK against the live server, with a tenant's key as the only change."""

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.server import Server

QUESTION = "Can you explain sugar?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def pricing(server: Server, keys: dict[str, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=keys["pricing"], max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def supply_chain(server: Server, keys: dict[str, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=keys["supply-chain"], max_retries=0) as client:
        yield client


def say(client: openai.OpenAI, model: str) -> str:
    answer = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=60)
    assert answer.model == model
    return str(answer.choices[0].message.content)


def test_base_and_adapters_answer_differently(pricing: openai.OpenAI, supply_chain: openai.OpenAI) -> None:
    answers = {say(pricing, "demo"), say(pricing, "pricing"), say(supply_chain, "supply-chain")}
    assert len(answers) == 3
    assert all("sugar" in answer.lower() for answer in answers)


def test_chat_and_completions_agree(pricing: openai.OpenAI) -> None:
    completion = pricing.completions.create(
        model="pricing", prompt=f"[INST] {QUESTION} [/INST]", temperature=0, max_tokens=60
    )
    assert completion.choices[0].text == say(pricing, "pricing")
    assert completion.choices[0].finish_reason == "stop"


def test_a_stream_adds_up_to_the_whole_answer_and_its_usage(pricing: openai.OpenAI) -> None:
    whole = pricing.chat.completions.create(model="pricing", messages=MESSAGES, temperature=0, max_tokens=60)
    chunks = list(
        pricing.chat.completions.create(
            model="pricing",
            messages=MESSAGES,
            temperature=0,
            max_tokens=60,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert {chunk.model for chunk in chunks} == {"pricing"}
    assert chunks[-1].choices == []
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


STREAMED = 200


def streamed(client: openai.OpenAI) -> list[openai.types.Completion]:
    """Return the chunks of a greedy answer of ``STREAMED`` tokens, the one with its usage last."""
    chunks = client.completions.create(
        model="pricing",
        prompt=f"[INST] {QUESTION} [/INST]",
        max_tokens=STREAMED,
        temperature=0,
        extra_body={"ignore_eos": True},
        stream=True,
        stream_options={"include_usage": True},
    )
    return list(chunks)


def test_completions_stream(pricing: openai.OpenAI) -> None:
    whole = pricing.completions.create(
        model="pricing",
        prompt=f"[INST] {QUESTION} [/INST]",
        max_tokens=STREAMED,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    *chunks, last = streamed(pricing)
    assert len(chunks) <= STREAMED + 1
    assert last.usage is not None
    assert last.usage.completion_tokens == STREAMED
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text


def test_tokens_are_sent_as_they_are_made(pricing: openai.OpenAI) -> None:
    # If the server fetches a token late, as on a busy machine, vLLM sends it together with the next. So the number of
    # events says nothing about one answer; only a server that does not stream sends few events each time.
    events: list[int] = []
    while len(events) < 5 and max(events, default=0) < 8:
        events.append(sum(len(chunk.choices) for chunk in streamed(pricing)))
    assert max(events) >= 8


def test_sampling_parameters_reach_the_engine(pricing: openai.OpenAI) -> None:
    def sample(seed: int) -> list[str]:
        answer = pricing.completions.create(
            model="pricing",
            prompt="Once",
            temperature=2.0,
            top_p=0.99,
            seed=seed,
            n=2,
            max_tokens=12,
            extra_body={"top_k": 50, "min_p": 0.001},
        )
        return [choice.text for choice in answer.choices]

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    stopped = pricing.completions.create(
        model="pricing", prompt=f"[INST] {QUESTION} [/INST]", temperature=0, max_tokens=60, stop=["price"]
    )
    assert stopped.choices[0].finish_reason == "stop"
    assert "price" not in stopped.choices[0].text
    biased = pricing.completions.create(
        model="pricing", prompt="x", temperature=0, max_tokens=3, logit_bias={"70": 100}
    )
    assert len(set(biased.choices[0].text)) == 1


def test_logprobs(pricing: openai.OpenAI) -> None:
    answer = pricing.chat.completions.create(
        model="pricing", messages=MESSAGES, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert len(content) == 5
    for token in content:
        assert token.logprob == max(top.logprob for top in token.top_logprobs)


def test_system_prompts_and_earlier_turns_count(pricing: openai.OpenAI) -> None:
    def tokens(messages: list[dict[str, str]]) -> int:
        answer = pricing.chat.completions.create(model="pricing", messages=messages, max_tokens=1)  # type: ignore[arg-type]
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    turns = [{"role": "user", "content": "What is tea?"}, {"role": "assistant", "content": "A drink."}]
    system = [{"role": "system", "content": "You are brief."}]
    assert tokens(MESSAGES) < tokens(system + MESSAGES) < tokens(system + turns + MESSAGES)


def test_structured_output(pricing: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "unit": {"enum": ["kilo", "litre"]}},
        "required": ["ok", "unit"],
        "additionalProperties": False,
    }
    answer = pricing.chat.completions.create(
        model="pricing",
        messages=MESSAGES,
        temperature=0,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "price", "schema": schema, "strict": True}},
    )
    found = json.loads(answer.choices[0].message.content or "")
    assert isinstance(found["ok"], bool)
    assert found["unit"] in {"kilo", "litre"}
    choice = pricing.completions.create(
        model="pricing", prompt="x", extra_body={"structured_outputs": {"choice": ["raise", "lower"]}}, max_tokens=20
    )
    assert choice.choices[0].text in {"raise", "lower"}
    number = pricing.completions.create(
        model="pricing", prompt="x", extra_body={"structured_outputs": {"regex": "[0-9]{3}-[0-9]{2}"}}, max_tokens=20
    )
    assert re.fullmatch(r"[0-9]{3}-[0-9]{2}", number.choices[0].text)


def test_a_named_tool_is_called_with_arguments_that_fit(pricing: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"sku": {"enum": ["sugar", "salt"]}},
        "required": ["sku"],
        "additionalProperties": False,
    }
    answer = pricing.chat.completions.create(
        model="pricing",
        messages=MESSAGES,
        temperature=0,
        max_tokens=100,
        tools=[{"type": "function", "function": {"name": "price_of", "parameters": schema}}],
        tool_choice={"type": "function", "function": {"name": "price_of"}},
    )
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert calls[0].function.name == "price_of"
    assert json.loads(calls[0].function.arguments)["sku"] in {"sugar", "salt"}


def test_tools_that_are_not_forced_leave_a_plain_answer(pricing: openai.OpenAI) -> None:
    answer = pricing.chat.completions.create(
        model="pricing",
        messages=MESSAGES,
        temperature=0,
        max_tokens=40,
        tools=[{"type": "function", "function": {"name": "price_of", "parameters": {"type": "object"}}}],
    )
    assert answer.choices[0].message.content


def test_each_tenant_lists_its_own_models(pricing: openai.OpenAI, supply_chain: openai.OpenAI) -> None:
    own, other = ({model.id for model in client.models.list()} for client in (pricing, supply_chain))
    assert {"demo", "pricing"} <= own
    assert {"demo", "supply-chain"} <= other
    assert own & other == {"demo"}
    assert pricing.models.retrieve("pricing").id == "pricing"
    with pytest.raises(openai.NotFoundError):
        pricing.models.retrieve("supply-chain")


@pytest.mark.parametrize("model", ["nothing", "pricing@7", "pricing:canary", "supply-chain", "Pricing", "pricing@1@1"])
def test_a_model_that_is_not_there(pricing: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        pricing.chat.completions.create(model=model, messages=MESSAGES)
    assert refused.value.param == "model"


def test_a_key_that_does_not_work(server: Server) -> None:
    for key in ("nonsense", "tnr_0000000000000000_" + "0" * 49):
        with (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"temperature": 7}, "temperature"),
        ({"n": 1000}, "n"),
        ({"extra_body": {"priority": 1}}, "priority"),
        ({"extra_body": {"cache_salt": "x"}}, "cache_salt"),
        ({"extra_body": {"chat_template": "{{ x }}"}}, "chat_template"),
        ({"max_tokens": 100_000}, None),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wrong"}}}}, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_refused_before_the_first_byte(
    pricing: openai.OpenAI, extra: dict[str, object], param: str | None, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        pricing.chat.completions.create(model="pricing", messages=MESSAGES, stream=stream, **extra)  # type: ignore[call-overload]
    if param:
        assert refused.value.param == param
    assert "Traceback" not in refused.value.message
    assert refused.value.response.headers["x-request-id"]
