"""Responses and Messages run as the chat of the same conversation: prompt, tokens, limits and usage are the chat's."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from app.database.versions import describe_version
from app.domain.access import Caller, Scope
from app.domain.errors import EngineUnavailable, InvalidRequest, NotFound
from app.engine.port import Endpoint, TokenUsage
from app.services.bodies.anthropic import messages_request
from app.services.bodies.responses import responses_request
from app.services.prompts.base_template import BaseTemplate
from app.services.prompts.chat import ChatPrompts
from app.services.serving.inference import InferenceService
from app.services.serving.served import Served
from app.settings import Settings
from tests.support.chat_answers import EngineStream, answer, error_chunk, parsed, text_chunks
from tests.support.inference import TEMPLATE, MemoryLedger, inference_service
from tests.support.recorder import Recorder
from tests.support.registry import Node
from tests.support.word_tokenizer import word_tokenizer

pytest_plugins = ("tests.support.registry_fixtures",)

CONTEXT = 256
SCHEMA = {"type": "object", "properties": {"item": {"type": "string"}}}
OWN_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{{ m.tool_calls }}{% endif %}\n"
    "{% endfor %}{{ tools }}"
)
VERSIONS: dict[str, dict[str, Any]] = {
    "no defaults": {},
    "a system prompt": {"system_prompt": "Be brief", "temperature": 0.5, "max_tokens": 5, "stop": ["END"]},
    "its own template": {"chat_template": OWN_TEMPLATE},
    "its own template and prompt": {"chat_template": OWN_TEMPLATE, "system_prompt": "Be brief"},
}
ARGUMENTS = '{"item": "salt"}'


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


#: The same conversation as the input of a response, the turns of a message, and the messages of a chat.
CONVERSATIONS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "a question": (
        {"input": "hi"},
        {"messages": [turn("user", "hi")]},
        {"messages": [turn("user", "hi")]},
    ),
    "a system prompt": (
        {"instructions": "Be brief", "input": [turn("user", [{"type": "input_text", "text": "hi"}])]},
        {"system": [{"type": "text", "text": "Be brief"}], "messages": [turn("user", "hi")]},
        {"messages": [turn("system", "Be brief"), turn("user", "hi")]},
    ),
    "earlier turns": (
        {"input": [turn("user", "hi"), turn("assistant", "Sweet"), turn("user", "What")]},
        {"messages": [turn("user", "hi"), turn("assistant", "Sweet"), turn("user", "What")]},
        {"messages": [turn("user", "hi"), turn("assistant", "Sweet"), turn("user", "What")]},
    ),
    "a loop with a tool": (
        {
            "input": [
                turn("user", "hi"),
                {"type": "function_call", "call_id": "c1", "name": "price_of", "arguments": ARGUMENTS},
                {"type": "function_call_output", "call_id": "c1", "output": "two euros"},
            ],
            "tools": [{"type": "function", "name": "price_of", "parameters": SCHEMA}],
        },
        {
            "messages": [
                turn("user", "hi"),
                turn("assistant", [{"type": "tool_use", "id": "c1", "name": "price_of", "input": {"item": "salt"}}]),
                turn("user", [{"type": "tool_result", "tool_use_id": "c1", "content": "two euros"}]),
            ],
            "tools": [{"name": "price_of", "input_schema": SCHEMA}],
        },
        {
            "messages": [
                turn("user", "hi"),
                turn(
                    "assistant",
                    None,
                    tool_calls=[
                        {"id": "c1", "type": "function", "function": {"name": "price_of", "arguments": ARGUMENTS}}
                    ],
                ),
                turn("tool", "two euros", tool_call_id="c1"),
            ],
            "tools": [{"type": "function", "function": {"name": "price_of", "parameters": SCHEMA}}],
        },
    ),
}
#: Fields that a body of each API always has, with the name of the translation.
APIS: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "responses": ({"input": "hi"}, responses_request),
    "messages": ({"messages": [turn("user", "hi")], "max_tokens": 9}, messages_request),
}


@pytest.fixture
async def caller(node: Node) -> Caller:
    """Caller of the tenant ``pricing`` with the adapter ``prices``."""
    tenant = await node.tenants.create("pricing", actor="cli")
    await node.publish("pricing", "prices", "a")
    return Caller("key", tenant.id, "pricing", frozenset({Scope.INFERENCE}), "salt")


@pytest.fixture
async def prompts() -> AsyncIterator[ChatPrompts]:
    prompts = ChatPrompts(Settings(), {}, BaseTemplate(TEMPLATE, {}))
    yield prompts
    await prompts.close()


def service(node: Node, engine: Recorder, prompts: ChatPrompts, ledger: MemoryLedger | None = None) -> InferenceService:
    return inference_service(node, engine, prompts=prompts, tokenizer=word_tokenizer(), ledger=ledger, context=CONTEXT)


async def describe(node: Node, **defaults: Any) -> None:
    version = await node.adapters.get_version("pricing", "prices", 1)
    async with node.database.write() as connection:
        await describe_version(connection, version.key.version_id, card="", training_run=None, defaults=defaults)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("defaults", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("bodies", CONVERSATIONS.values(), ids=CONVERSATIONS)
async def test_the_engine_gets_what_the_chat_gives_it(
    node: Node,
    caller: Caller,
    prompts: ChatPrompts,
    bodies: tuple[dict[str, Any], dict[str, Any], dict[str, Any]],
    defaults: dict[str, Any],
    stream: bool,
) -> None:
    await describe(node, **defaults)
    engine = Recorder(answer("Sweet"))
    inference, more = service(node, engine, prompts), {"model": "prices", "stream": stream, "temperature": 0.25}
    responses, messages, chat = bodies
    options = {"stream_options": {"include_usage": True}} if stream else {}
    await inference.translate(caller, "1", responses | more | {"max_output_tokens": 4}, responses_request)
    await inference.translate(caller, "2", messages | more | {"max_tokens": 4}, messages_request)
    await inference.complete(caller, "3", Endpoint.CHAT, chat | more | options | {"max_tokens": 4})
    first, second, third = engine.requests
    assert first.prompt == second.prompt == third.prompt
    assert first.token_ids == second.token_ids == third.token_ids
    assert first.token_ids is not None
    shared = set(third.body) - {"messages"}
    assert {name: first.body[name] for name in shared} == {name: third.body[name] for name in shared}
    assert {name: second.body[name] for name in shared} == {name: third.body[name] for name in shared}
    assert {request.adapter for request in engine.requests} == {third.adapter}
    assert {request.cache_salt for request in engine.requests} == {"salt"}


@pytest.mark.parametrize(("body", "translation"), APIS.values(), ids=APIS)
async def test_usage_is_the_record_of_a_whole_answer(
    node: Node, caller: Caller, prompts: ChatPrompts, body: dict[str, Any], translation: Any
) -> None:
    engine, ledger = Recorder(answer("Sweet")), MemoryLedger()
    engine.usages["id"] = TokenUsage(7, 3, 2, ttft_s=0.1)
    served = await service(node, engine, prompts, ledger).translate(caller, "id", body, translation)
    assert isinstance(served.answer, dict)
    (record,) = ledger.kept
    usage = served.answer["usage"]
    cached = usage.get("cache_read_input_tokens", 0)
    assert (usage["input_tokens"] + cached, usage["output_tokens"]) == (record.prompt_tokens, record.output_tokens)
    assert (cached or usage["input_tokens_details"]["cached_tokens"]) == record.cached_tokens == 3
    assert served.answer["model"] == "demo"


async def events(served: Served) -> list[dict[str, Any]]:
    assert not isinstance(served.answer, dict)
    return parsed([event async for event in served.answer])


@pytest.mark.parametrize(("body", "translation"), APIS.values(), ids=APIS)
async def test_usage_is_the_record_of_a_stream(
    node: Node, caller: Caller, prompts: ChatPrompts, body: dict[str, Any], translation: Any
) -> None:
    engine, ledger = Recorder(EngineStream(text_chunks("Swe", "et"))), MemoryLedger()
    engine.usages["id"] = TokenUsage(7, 3, 2, ttft_s=0.1)
    served = await service(node, engine, prompts, ledger).translate(caller, "id", body | {"stream": True}, translation)
    told = await events(served)
    (record,) = ledger.kept
    assert (record.prompt_tokens, record.output_tokens, record.finish_reason) == (7, 2, "stop")
    usages = [one for event in told for one in (event.get("usage"), event.get("response", {}).get("usage")) if one]
    assert usages[-1]["output_tokens"] == 2
    assert usages[-1]["input_tokens"] + usages[-1].get("cache_read_input_tokens", 0) == 7


@pytest.mark.parametrize(("body", "translation"), APIS.values(), ids=APIS)
async def test_a_client_that_leaves_pays_for_what_was_made(
    node: Node, caller: Caller, prompts: ChatPrompts, body: dict[str, Any], translation: Any
) -> None:
    engine, ledger = Recorder(EngineStream(text_chunks("Swe", "et"))), MemoryLedger()
    inference = service(node, engine, prompts, ledger)
    served = await inference.translate(caller, "id", body | {"stream": True}, translation)
    assert not isinstance(served.answer, dict)
    await anext(served.answer)
    engine.usages["id"] = TokenUsage(7, 0, 1, ttft_s=0.1)
    await served.answer.aclose()
    while not ledger.kept:
        await asyncio.sleep(0)
    (record,) = ledger.kept
    assert (record.prompt_tokens, record.output_tokens, record.status) == (7, 1, 499)


@pytest.mark.parametrize(("body", "translation"), APIS.values(), ids=APIS)
async def test_an_error_in_the_middle_of_a_stream(
    node: Node, caller: Caller, prompts: ChatPrompts, body: dict[str, Any], translation: Any
) -> None:
    engine, ledger = Recorder(EngineStream([*text_chunks("Swe")[:2], error_chunk()])), MemoryLedger()
    engine.usages["id"] = TokenUsage(7, 0, 1, ttft_s=0.1)
    served = await service(node, engine, prompts, ledger).translate(caller, "id", body | {"stream": True}, translation)
    assert (await events(served))[-1]["type"] in ("response.failed", "error")
    assert [record.status for record in ledger.kept] == [503]


@pytest.mark.parametrize("finish", ["error", "abort", None])
@pytest.mark.parametrize(("body", "translation"), APIS.values(), ids=APIS)
async def test_an_answer_that_the_engine_aborted_is_an_error(
    node: Node, caller: Caller, prompts: ChatPrompts, body: dict[str, Any], translation: Any, finish: Any
) -> None:
    engine = Recorder(answer("Swe", finish=finish))
    with pytest.raises(EngineUnavailable):
        await service(node, engine, prompts).translate(caller, "id", body, translation)


async def test_refusals_of_the_engine_have_the_clients_names(node: Node, caller: Caller, prompts: ChatPrompts) -> None:
    refused = "'max_tokens' or 'max_completion_tokens' is too large: 99."
    for (body, translation), name in zip(APIS.values(), ("max_output_tokens", "max_tokens"), strict=True):
        engine = Recorder(InvalidRequest(refused, param="max_completion_tokens"))
        inference = service(node, engine, prompts)
        with pytest.raises(InvalidRequest) as caught:
            await inference.translate(caller, "id", body, translation)
        assert caught.value.param == name
        assert caught.value.message == f"{name} is too large: 99."


@pytest.mark.parametrize(("body", "translation"), APIS.values(), ids=APIS)
async def test_a_prompt_beyond_the_context_names_its_field(
    node: Node, caller: Caller, prompts: ChatPrompts, body: dict[str, Any], translation: Any
) -> None:
    long = "hi " * CONTEXT
    field = "input" if "input" in body else "messages"
    asked = body | {field: long if field == "input" else [turn("user", long)]}
    with pytest.raises(Exception, match=f"maximum context length is {CONTEXT}") as caught:
        await service(node, Recorder(answer("x")), prompts).translate(caller, "id", asked, translation)
    assert getattr(caught.value, "param", None) == field


@pytest.mark.parametrize(("body", "translation"), APIS.values(), ids=APIS)
async def test_a_name_that_is_not_there(
    node: Node, caller: Caller, prompts: ChatPrompts, body: dict[str, Any], translation: Any
) -> None:
    with pytest.raises(NotFound):
        await service(node, Recorder({}), prompts).translate(caller, "id", body | {"model": "nope"}, translation)


async def test_a_body_is_refused_before_its_name_is_looked_up(node: Node, caller: Caller, prompts: ChatPrompts) -> None:
    with pytest.raises(InvalidRequest, match="input is missing"):
        await service(node, Recorder({}), prompts).translate(caller, "id", {"model": "nope"}, responses_request)
