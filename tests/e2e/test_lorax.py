"""LoRAX's routes on the real engine, with the bodies that lorax-client 0.6.3 sends: every field, most of them null."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.reference import PeftReference
from tests.support.server import Server

PROMPT = "[INST] Can you explain sugar? [/INST]"
MAX_TOKENS = 40


@pytest.fixture(scope="module")
def pricing(server: Server, keys: dict[str, str]) -> Iterator[httpx.Client]:
    with server.client(keys["pricing"]) as client:
        yield client


def body(*, stream: bool = False, **given: Any) -> dict[str, Any]:
    fields: dict[str, Any] = dict.fromkeys(
        (
            "adapter_source",
            "merged_adapters",
            "api_token",
            "repetition_penalty",
            "seed",
            "temperature",
            "top_k",
            "top_p",
            "truncate",
            "typical_p",
            "best_of",
            "return_k_alternatives",
            "response_format",
        )
    )
    fields |= {
        "do_sample": False,
        "ignore_eos_token": False,
        "return_full_text": False,
        "stop": [],
        "watermark": False,
        "details": True,
        "decoder_input_details": False,
        "adapter_id": "pricing",
        "max_new_tokens": MAX_TOKENS,
    }
    return {"inputs": PROMPT, "parameters": fields | given, "stream": stream}


def events(client: httpx.Client, path: str, request: dict[str, Any]) -> list[dict[str, Any]]:
    lines = client.post(path, json=request).text.splitlines()
    return [json.loads(line.removeprefix("data:")) for line in lines if line]


def test_the_answer_and_its_details_are_pefts(pricing: httpx.Client, reference: PeftReference) -> None:
    expected = reference.greedy(reference.encode(PROMPT), "pricing", MAX_TOKENS)
    answer = pricing.post("/generate", json=body()).json()
    assert answer["generated_text"] == reference.decode(expected)
    details = answer["details"]
    assert details["finish_reason"] == "eos_token"
    assert [token["id"] for token in details["tokens"]] == expected
    assert details["generated_tokens"] == len(expected)
    assert details["prompt_tokens"] == len(reference.encode(PROMPT))
    assert "".join(token["text"] for token in details["tokens"] if not token["special"]) == answer["generated_text"]


def test_the_client_posts_to_the_root_and_unwraps_a_list(pricing: httpx.Client) -> None:
    whole = pricing.post("/generate", json=body()).json()
    assert pricing.post("/", json=body()).json() == [whole]


@pytest.mark.parametrize("path", ["/generate_stream", "/"])
def test_a_stream_has_one_event_a_token_and_a_last_whole(pricing: httpx.Client, path: str) -> None:
    whole = pricing.post("/generate", json=body()).json()
    found = events(pricing, path, body(stream=True))
    assert [event["token"]["id"] for event in found] == [token["id"] for token in whole["details"]["tokens"]]
    assert all(event["generated_text"] is None for event in found[:-1])
    assert found[-1]["generated_text"] == whole["generated_text"]
    assert found[-1]["details"]["finish_reason"] == "eos_token"


@pytest.mark.parametrize(
    ("given", "status"),
    [({"adapter_id": "nothing"}, 404), ({"watermark": True}, 400), ({"max_new_tokens": 100_000}, 400)],
)
def test_errors_have_loraxs_shape(pricing: httpx.Client, given: dict[str, Any], status: int) -> None:
    for path in ("/generate", "/generate_stream", "/"):
        refused = pricing.post(path, json=body(**given))
        assert refused.status_code == status
        assert set(refused.json()) == {"error", "error_type"}
