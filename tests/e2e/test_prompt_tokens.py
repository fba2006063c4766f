"""Prompt tokens on the real engine: the gateway's are those of the engine, and those of transformers."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.reference import PeftReference
from tests.support.server import Server

PIECES = ["Where is my ", "parcel?", "<s>", "</s>", " [INST] ", "[/INST]", "é", "漢字", "🍋", "\n\n", "  ", "{{ 1 }}"]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), min_size=1, max_size=6).map("".join).filter(len)
ROLES = st.sampled_from(["system", "user", "assistant"])
TURNS = st.lists(st.fixed_dictionaries({"role": ROLES, "content": TEXTS}), min_size=1, max_size=4)
TOOL = {
    "type": "function",
    "function": {"name": "price", "description": "Price of a sku", "parameters": {"type": "object", "properties": {}}},
}
FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def pricing(server: Server, keys: dict[str, str]) -> Iterator[httpx.Client]:
    with server.client(keys["pricing"]) as client:
        yield client


def prompt_ids(client: httpx.Client, route: str, **body: Any) -> list[int]:
    """Return the tokens of the prompt that the engine ran, whose number is the usage."""
    answer = client.post(f"/v1/{route}", json={"model": "pricing", "max_tokens": 1, "return_token_ids": True, **body})
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    ids = whole["prompt_token_ids"] if route == "chat/completions" else whole["choices"][0]["prompt_token_ids"]
    assert whole["usage"]["prompt_tokens"] == len(ids)
    return [int(token_id) for token_id in ids]


@FEW
@given(text=TEXTS)
def test_the_gateways_tokens_are_the_engines(pricing: httpx.Client, reference: PeftReference, text: str) -> None:
    """With ``echo`` the engine tokenizes the text itself."""
    ids = prompt_ids(pricing, "completions", prompt=text)
    assert ids == prompt_ids(pricing, "completions", prompt=text, echo=True) == reference.tokenizer(text).input_ids


@FEW
@given(turns=TURNS, tools=st.sampled_from([None, [TOOL]]))
def test_chats_have_the_tokens_of_transformers(
    pricing: httpx.Client, reference: PeftReference, turns: list[dict[str, str]], tools: list[dict[str, Any]] | None
) -> None:
    expected = reference.tokenizer.apply_chat_template(
        turns, tools=tools, add_generation_prompt=True, return_dict=False
    )
    assert prompt_ids(pricing, "chat/completions", messages=turns, tools=tools) == expected


def test_a_limit_takes_the_exact_number(pricing: httpx.Client, server: Server, reference: PeftReference) -> None:
    text = "Where is my parcel? 漢字 </s>"
    used = len(reference.tokenizer(text).input_ids) + 3
    with server.client(server.admin_key) as admin:
        path = "/admin/tenants/pricing"
        for most, status in ((used, 200), (used - 1, 400)):
            assert admin.patch(path, json={"limits": {"tokens_per_request": most}}).status_code == 200
            body = {"model": "pricing", "prompt": text, "max_tokens": 3}
            answer = pricing.post("/v1/completions", json=body)
            assert answer.status_code == status, answer.text
            if status == 400:
                assert f"tokens_per_request would be {used} " in answer.json()["error"]["message"]
        assert admin.patch(path, json={"limits": {"tokens_per_request": None}}).status_code == 200
