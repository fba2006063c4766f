"""Tokens of requests: encoded once, refused beyond the context, bounded before they run."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from app.domain.errors import Busy, ContextLengthExceeded, InvalidRequest, UnsupportedField
from app.domain.limits.limits import TokenBound
from app.engine.port import Endpoint, EngineRequest
from app.services.prompts.tokenizer import BaseTokenizer
from app.services.prompts.tokens import PromptTokens, most_output

CONTEXT = 8


@pytest.fixture(scope="module")
def tokenizer() -> BaseTokenizer:
    """Tokenizer with one token for each word, and a BOS with id 0."""
    words = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "bc": 2}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return BaseTokenizer(words, frozenset({0}))


@pytest.fixture
def tokens(tokenizer: BaseTokenizer) -> PromptTokens:
    return PromptTokens(tokenizer, context=CONTEXT)


def request(body: dict[str, Any], prompt: str | None = None) -> EngineRequest:
    endpoint = Endpoint.COMPLETIONS if prompt is None else Endpoint.CHAT
    return EngineRequest("r", endpoint, body, "m", None, "salt", prompt)


async def test_texts_and_tokens_become_each_other(tokens: PromptTokens) -> None:
    assert await tokens.encode("a bc", special=True, tenant="t") == (0, 1, 2)
    assert await tokens.encode("a bc", special=False, tenant="t") == (1, 2)
    long = await tokens.encode("a bc " * 1000, special=False, tenant="t")
    assert long == (1, 2) * 1000
    assert await tokens.decode([0, 1, 2], tenant="t") == "<s> a bc"
    assert await tokens.decode(long, tenant="t") == "a bc " * 999 + "a bc"
    assert await tokens.text_of_each((0, 2), tenant="t") == ["<s>", "bc"]


@pytest.mark.parametrize("ids", [[3], [1, 2, 2**31 - 1]])
async def test_an_id_that_is_no_token_is_named(tokens: PromptTokens, ids: list[int]) -> None:
    with pytest.raises(InvalidRequest, match=f"tokens has {ids[-1]}"):
        await tokens.decode(ids, tenant="t")


async def test_without_a_tokenizer_there_are_no_tokens() -> None:
    tokens = PromptTokens(None, context=CONTEXT)
    for call in (
        tokens.encode("a", special=True, tenant="t"),
        tokens.decode([1], tenant="t"),
        tokens.text_of_each([1], tenant="t"),
    ):
        with pytest.raises(UnsupportedField, match="cannot load the tokenizer"):
            await call


@pytest.mark.parametrize(
    ("body", "prompt", "token_ids"),
    [
        ({"prompt": "a bc"}, None, ((0, 1, 2),)),
        ({"prompt": ["a", "bc bc"]}, None, ((0, 1), (0, 2, 2))),
        ({"prompt": [2, 2, 9]}, None, ((2, 2, 9),)),
        ({"prompt": [[2], [1, 2]]}, None, ((2,), (1, 2))),
        ({"messages": []}, "a bc", ((1, 2),)),
        ({"prompt": "a bc a", "truncate_prompt_tokens": 2}, None, ((2, 1),)),
        ({"prompt": [1, 2, 9], "truncate_prompt_tokens": 2}, None, ((2, 9),)),
        ({"messages": []}, " ", None),
    ],
)
async def test_prompts_are_encoded(
    tokens: PromptTokens, body: dict[str, Any], prompt: str | None, token_ids: tuple[tuple[int, ...], ...] | None
) -> None:
    asked = request(body, prompt)
    assert await tokens.tokenized(asked) == replace(asked, token_ids=token_ids)


async def test_a_long_text_has_the_same_tokens(tokenizer: BaseTokenizer) -> None:
    made = await PromptTokens(tokenizer, context=10**6).tokenized(request({"prompt": "a bc " * 5000}))
    assert made.token_ids == ((0, *(1, 2) * 5000),)


class SlowTokenizer(BaseTokenizer):
    """Tokenizer that encodes only while ``may`` is set, and records the order of the texts."""

    def __init__(self, tokenizer: BaseTokenizer) -> None:
        self.longest_token, self.special_ids = tokenizer.longest_token, tokenizer.special_ids
        self.may, self.texts_begun = threading.Event(), list[str]()

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        self.texts_begun.append(text[:1])
        assert self.may.wait(60)
        return (1,)


async def test_tenants_take_turns_with_long_texts(tokenizer: BaseTokenizer) -> None:
    """One tenant's long texts leave a thread to another's, and one tenant never has two."""
    slow = SlowTokenizer(tokenizer)
    tokens = PromptTokens(slow, context=10**6)

    def sent(tenant: str) -> "asyncio.Task[EngineRequest]":
        return asyncio.create_task(tokens.tokenized(replace(request({"prompt": tenant * 5000}), tenant=tenant)))

    flood = [sent("a") for _ in range(20)]
    await asyncio.sleep(0.05)
    assert slow.texts_begun == ["a"]
    other = sent("b")
    await asyncio.sleep(0.05)
    assert slow.texts_begun == ["a", "b"]
    slow.may.set()
    await asyncio.gather(other, *flood)
    assert sorted(slow.texts_begun) == ["a"] * 20 + ["b"]


async def test_who_waits_too_long_for_a_turn_is_told(tokenizer: BaseTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.services.prompts.tokens._PATIENCE_S", 0.01)
    slow = SlowTokenizer(tokenizer)
    tokens, long = PromptTokens(slow, context=10**6), request({"prompt": "a" * 5000})
    first = asyncio.create_task(tokens.tokenized(long))
    await asyncio.sleep(0.05)
    with pytest.raises(Busy, match="Too many long prompts"):
        await tokens.tokenized(long)
    slow.may.set()
    await first


WHOLE = (
    "This model's maximum context length is 8 tokens. However, your prompt contains {}. "
    "Please reduce the length of the input prompt."
)
FULL = WHOLE.format("8 input tokens, which leaves no room for an answer")
LONG = WHOLE.format("9 input tokens, which exceeds this limit even without any output tokens")
HUGE = WHOLE.format("25 characters (more than 24 characters, which is the upper bound for 8 input tokens)")


@pytest.mark.parametrize(
    ("body", "prompt", "message"),
    [
        ({"prompt": "a " * 7}, None, FULL),
        ({"prompt": "a " * 8}, None, LONG),
        ({"prompt": ["a", "a " * 8]}, None, LONG),
        ({"prompt": [5] * 8}, None, FULL),
        ({"prompt": [[5], [5] * 9]}, None, LONG),
        ({"prompt": "a" * 25}, None, HUGE),
        ({"prompt": "a " * 20, "truncate_prompt_tokens": 8}, None, FULL),
        ({"messages": []}, "a " * 8, FULL),
        ({"messages": []}, "a " * 9, LONG),
        ({"messages": []}, "a" * 25, HUGE),
    ],
)
async def test_a_prompt_beyond_the_context_is_refused(
    tokens: PromptTokens, body: dict[str, Any], prompt: str | None, message: str
) -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        await tokens.tokenized(request(body, prompt))
    assert refused.value.message == message
    assert refused.value.param == ("prompt" if prompt is None else "messages")


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("max_tokens", {"prompt": "a"}),
        ("max_tokens", {"prompt": [5]}),
        ("max_completion_tokens", {"messages": []}),
    ],
)
async def test_an_answer_beyond_the_context_is_refused(field: str, body: dict[str, Any]) -> None:
    tokens, prompt = PromptTokens(None, context=CONTEXT), "a" if "messages" in body else None
    with pytest.raises(InvalidRequest, match=f"{field} is 9, .* has 8 tokens .* smaller {field}") as refused:
        await tokens.tokenized(request({**body, field: CONTEXT + 1}, prompt))
    assert refused.value.param == field
    await tokens.tokenized(request({**body, field: CONTEXT}, prompt))


async def test_the_engine_refuses_a_truncation_beyond_the_context(tokens: PromptTokens) -> None:
    asked = request({"prompt": "a " * 20, "truncate_prompt_tokens": 9})
    assert (await tokens.tokenized(asked)).token_ids == ((1,) * 9,)


async def test_without_a_tokenizer_texts_stay_and_are_bounded() -> None:
    tokens = PromptTokens(None, context=CONTEXT)
    for asked, prompt in (
        (request({"prompt": "é"}), 5),
        (request({"prompt": ["é", "abcdefgh"]}), 13),
        (request({"messages": []}, "x"), 4),
        (request({"prompt": "abcdefgh", "truncate_prompt_tokens": 2}), 2),
    ):
        assert await tokens.tokenized(asked) == asked
        assert tokens.most(asked).prompt == prompt
    with pytest.raises(ContextLengthExceeded):
        await tokens.tokenized(request({"prompt": [5] * CONTEXT}))
    assert tokens.texts([5, 6]) == ["token_id:5", "token_id:6"]
    assert tokens.special_ids == frozenset()


@given(texts=st.lists(st.text(alphabet="abc \n", min_size=1, max_size=20), min_size=1, max_size=4))
def test_the_estimate_is_never_too_low(tokenizer: BaseTokenizer, texts: list[str]) -> None:
    asked = request({"prompt": texts})
    known = replace(asked, token_ids=tuple(tokenizer.encode(text, special=True) for text in texts))
    exact, estimate = (PromptTokens(None, context=10**6).most(one) for one in (known, asked))
    assert exact.prompt == sum(map(len, known.token_ids or ()))
    assert estimate.prompt >= exact.prompt


@pytest.mark.parametrize(
    ("body", "prompt", "bound"),
    [
        ({"prompt": [1, 2, 3]}, None, TokenBound(3, 5)),
        ({"prompt": [1, 2, 3], "max_tokens": 2, "n": 3}, None, TokenBound(3, 6)),
        ({"messages": []}, "a bc", TokenBound(2, 6)),
        ({"messages": [], "max_completion_tokens": 1}, "a bc", TokenBound(2, 1)),
    ],
)
async def test_the_bound_has_prompts_and_answers(
    tokens: PromptTokens, body: dict[str, Any], prompt: str | None, bound: TokenBound
) -> None:
    assert tokens.most(await tokens.tokenized(request(body, prompt))) == bound


@pytest.mark.parametrize(
    ("body", "counts", "default", "most"),
    [
        ({"max_tokens": 5}, [3], 16, 5),
        ({}, [3], 16, 16),
        ({"max_tokens": None}, [3], 16, 97),
        ({}, [3], None, 97),
        ({"max_tokens": 5, "n": 4}, [3, 8], 16, 40),
        ({"max_tokens": 50}, [60, 99, 100, 120], 16, 41),
        ({"max_completion_tokens": 7, "max_tokens": 5}, [3], None, 7),
        ({"n": None}, [90], 16, 10),
    ],
)
def test_a_sequence_gets_its_tokens_up_to_the_room(
    body: dict[str, object], counts: list[int], default: int | None, most: int
) -> None:
    assert most_output(body, counts, default=default, longest=100) == most
