"""Tokens of prompts without an engine: the same as in a chat or completion, and only requests are counted."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.database.versions import describe_version
from app.domain.access import Caller, Scope
from app.domain.errors import InvalidRequest, LimitExceeded, NotFound, UnsupportedField
from app.domain.limits.limits import Limits
from app.engine.port import Endpoint
from app.services.limits.memory import MemoryAccounts
from app.services.limits.prices import PriceService
from app.services.limits.service import LimitService
from app.services.prompts.base_template import BaseTemplate
from app.services.prompts.chat import ChatPrompts
from app.services.prompts.tokens import PromptTokens
from app.services.serving.tokenization import TokenizationService
from app.settings import Settings
from tests.support.chat_answers import answer
from tests.support.inference import TEMPLATE, inference_service
from tests.support.recorder import Recorder
from tests.support.registry import Node
from tests.support.word_tokenizer import BOS, word_tokenizer

pytest_plugins = ("tests.support.registry_fixtures",)

ASKED = {"role": "user", "content": "hi"}
OWN_TEMPLATE = "{% for m in messages %}{{ m.role }} ? {{ m.content }} {% endfor %}{{ tools }}"
TOOL = {"type": "function", "function": {"name": "price_of", "parameters": {"type": "object"}}}


@pytest.fixture
async def caller(node: Node) -> Caller:
    tenant = await node.tenants.create("pricing", actor="cli")
    await node.publish("pricing", "prices", "a")
    return Caller("key", tenant.id, "pricing", frozenset({Scope.INFERENCE}), "salt")


@pytest.fixture
async def prompts() -> AsyncIterator[ChatPrompts]:
    prompts = ChatPrompts(Settings(), {}, BaseTemplate(TEMPLATE, {}))
    yield prompts
    await prompts.close()


def service(node: Node, prompts: ChatPrompts, *, tokenizer: bool = True) -> TokenizationService:
    tokens = PromptTokens(word_tokenizer() if tokenizer else None, context=64)
    limiting = LimitService(tokens.most, MemoryAccounts(node.database), PriceService(node.database))
    return TokenizationService(node.adapters, prompts, tokens, limiting, Settings().limits, base_name="demo")


async def describe(node: Node, **defaults: Any) -> None:
    version = await node.adapters.get_version("pricing", "prices", 1)
    async with node.database.write() as connection:
        await describe_version(connection, version.key.version_id, card="", training_run=None, defaults=defaults)


async def test_a_text_is_tokenized_as_in_a_completion(node: Node, caller: Caller, prompts: ChatPrompts) -> None:
    tokenization = service(node, prompts)
    served = await tokenization.tokenize(caller, "1", {"prompt": "hi salt", "return_token_strs": True})
    assert served.answer == {
        "count": 3,
        "max_model_len": 64,
        "tokens": [BOS, 2, 8],
        "token_strs": ["<s>", "hi", "salt"],
    }
    plain = await tokenization.tokenize(caller, "2", {"prompt": "hi salt", "add_special_tokens": False})
    assert plain.answer == {"count": 2, "max_model_len": 64, "tokens": [2, 8]}
    assert (served.version, plain.ignored) == (None, ())


@pytest.mark.parametrize("defaults", [{}, {"system_prompt": "Be brief"}, {"chat_template": OWN_TEMPLATE}])
@pytest.mark.parametrize("tools", [None, [TOOL]])
async def test_a_conversation_has_the_tokens_of_its_chat(
    node: Node, caller: Caller, prompts: ChatPrompts, defaults: dict[str, Any], tools: Any
) -> None:
    await describe(node, **defaults)
    body = {"model": "prices", "messages": [ASKED], "tools": tools}
    served = await service(node, prompts).tokenize(caller, "1", body)
    engine = Recorder(answer("Sweet"))
    inference = inference_service(node, engine, prompts=prompts, tokenizer=word_tokenizer())
    await inference.complete(caller, "2", Endpoint.CHAT, body)
    assert engine.requests[0].token_ids is not None
    assert isinstance(served.answer, dict)
    assert served.answer["tokens"] == list(engine.requests[0].token_ids[0])
    assert served.version == "prices@1"
    messages = {"model": "prices", "messages": [ASKED]}
    if tools:
        messages["tools"] = [{"name": "price_of", "input_schema": {"type": "object"}}]
    counted = await service(node, prompts).count_message_tokens(caller, "3", messages)
    assert counted.answer == {"input_tokens": served.answer["count"]}


async def test_a_text_beyond_the_context_is_counted_too(node: Node, caller: Caller, prompts: ChatPrompts) -> None:
    served = await service(node, prompts).tokenize(caller, "1", {"prompt": "hi " * 5000})
    assert isinstance(served.answer, dict)
    assert served.answer["count"] == 5001


async def test_tokens_are_decoded(node: Node, caller: Caller, prompts: ChatPrompts) -> None:
    tokenization = service(node, prompts)
    served = await tokenization.detokenize(caller, "1", {"model": "prices", "tokens": [BOS, 2, 8]})
    assert (served.answer, served.version) == ({"prompt": "<s> hi salt"}, "prices@1")
    assert (await tokenization.detokenize(caller, "2", {"tokens": []})).answer == {"prompt": ""}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": [ASKED]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"messages": []}, "messages"),
        ({"prompt": "x", "tools": [TOOL]}, "tools"),
        ({"messages": [ASKED], "add_special_tokens": True}, "add_special_tokens"),
        ({"prompt": "x", "chat_template": "{{ 1 }}"}, "chat_template"),
    ],
)
async def test_a_body_that_is_refused(
    node: Node, caller: Caller, prompts: ChatPrompts, body: dict[str, Any], param: str
) -> None:
    with pytest.raises((InvalidRequest, UnsupportedField)) as refused:
        await service(node, prompts).tokenize(caller, "1", body)
    assert refused.value.param == param


@pytest.mark.parametrize("tokens", [[99], [2, 2**31 - 1], [-1], ["x"], [True], 5, None])
async def test_tokens_that_there_are_not(node: Node, caller: Caller, prompts: ChatPrompts, tokens: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await service(node, prompts).detokenize(caller, "1", {"tokens": tokens})
    assert refused.value.param == "tokens"


async def test_without_a_tokenizer_they_say_so(node: Node, caller: Caller, prompts: ChatPrompts) -> None:
    tokenization = service(node, prompts, tokenizer=False)
    calls = (
        tokenization.tokenize(caller, "1", {"prompt": "x"}),
        tokenization.detokenize(caller, "2", {"tokens": [1]}),
        tokenization.count_message_tokens(caller, "3", {"messages": [ASKED]}),
    )
    for call in calls:
        with pytest.raises(UnsupportedField, match="cannot load the tokenizer"):
            await call


async def test_a_model_that_is_not_there(node: Node, caller: Caller, prompts: ChatPrompts) -> None:
    tokenization, body = service(node, prompts), {"model": "absent"}
    with pytest.raises(NotFound):
        await tokenization.tokenize(caller, "1", body | {"prompt": "x"})
    with pytest.raises(NotFound):
        await tokenization.detokenize(caller, "2", body | {"tokens": [1]})
    with pytest.raises(NotFound):
        await tokenization.count_message_tokens(caller, "3", body | {"messages": [ASKED]})


async def test_only_requests_are_counted(node: Node, caller: Caller, prompts: ChatPrompts) -> None:
    """A budget of tokens that is used up does not matter, a limit of requests does."""
    limited = Caller(
        caller.key_id,
        caller.tenant_id,
        caller.tenant_slug,
        caller.scopes,
        caller.salt,
        limits=Limits(requests_per_minute=2, tokens_per_minute=1, tokens_per_day=0, tokens_per_request=1),
    )
    tokenization = service(node, prompts)
    for number in range(2):
        served = await tokenization.tokenize(limited, str(number), {"prompt": "hi " * 9})
        assert served.rate_limits is not None
        assert served.rate_limits.requests is not None
        assert served.rate_limits.requests.remaining == 1 - number
    with pytest.raises(LimitExceeded, match="requests_per_minute"):
        await tokenization.tokenize(limited, "3", {"prompt": "x"})
