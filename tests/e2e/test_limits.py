"""Limits under many concurrent clients: never exceeded, and nearly fully used."""

import asyncio
import json
import random
import uuid
from collections import defaultdict
from typing import Any

import httpx
import openai
import pytest

from app.demo.train import Demo
from tests.support.server import Server

CLIENTS = 64
#: Consecutive refusals after which a client stops: some refusals are temporary, until other requests release tokens.
ENOUGH = 8
LIMIT = 6000
PROMPT, ANSWER = 10, 20


@pytest.fixture
def tenant(server: Server, trained_demo: Demo) -> tuple[str, str]:
    """Tenant of this test alone, with an adapter and a key."""
    slug = f"limited-{uuid.uuid4().hex[:8]}"
    key = server.tenant(slug, scopes=("inference", "usage:read"))
    assert server.publish(slug, "prices", trained_demo.adapters["pricing"]).status_code == 201
    return slug, key


def limit(server: Server, slug: str, **limits: int | None) -> None:
    with server.client(server.admin_key) as admin:
        assert admin.patch(f"/admin/tenants/{slug}", json={"limits": limits}).status_code == 200


async def _greedy(server: Server, key: str, *, most: int) -> list[tuple[int, int]]:
    """Run many clients until the limit is exhausted.

    Returns for each answer its tokens and the tokens reserved for it.
    """
    got: list[tuple[int, int]] = []

    async def ask(client: httpx.AsyncClient, chance: random.Random) -> None:
        refused = 0
        while refused < ENOUGH and len(got) < most:
            wanted = chance.randint(1, ANSWER)
            prompt = [chance.randrange(10, 200) for _ in range(PROMPT)]
            # Some answers end early and release the rest of their reservation.
            body: dict[str, Any] = {"model": "prices", "prompt": prompt, "max_tokens": wanted, "temperature": 1}
            answer = await client.post("/v1/completions", json=body)
            if answer.status_code == 429:
                refused += 1
                assert int(answer.headers["retry-after"]) >= 1
                await asyncio.sleep(0.1)
                continue
            assert answer.status_code == 200, answer.text
            refused = 0
            got.append((answer.json()["usage"]["total_tokens"], PROMPT + wanted))
            assert int(answer.headers["x-ratelimit-limit-tokens"]) == LIMIT

    headers = {"authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers, limits=limits) as client:
        await asyncio.gather(*(ask(client, random.Random(number)) for number in range(CLIENTS)))
    return got


def test_many_clients_get_all_that_is_allowed_and_no_token_more(server: Server, tenant: tuple[str, str]) -> None:
    slug, key = tenant
    limit(server, slug, tokens_per_minute=LIMIT)
    got = asyncio.run(_greedy(server, key, most=10_000))
    used = sum(tokens for tokens, _ in got)
    assert 0.99 * LIMIT <= used <= LIMIT
    assert used < sum(taken for _, taken in got), "no answer ended early: nothing was given back"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "What is sugar?"}),
        ("/v1/completions", {"prompt": ["What is sugar?", "Who are you?"]}),
        ("/v1/completions", {"prompt": "What is sugar?", "echo": True, "logprobs": 1}),
        ("/v1/completions", {"prompt": [5, 6, 7]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Who are you?"}]}),
        (
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "Say yes or no"}],
                "structured_outputs": {"choice": ["yes", "no"]},
            },
        ),
    ],
)
def test_a_limit_changes_nothing_of_an_answer(
    server: Server, tenant: tuple[str, str], path: str, asked: dict[str, Any], stream: bool
) -> None:
    """The prompts of a tenant with a token limit are counted before they run, and run with the same tokens."""
    slug, key = tenant
    body = {"model": "prices", "max_tokens": 8, "temperature": 0, "stream": stream, **asked}
    answers = []
    with server.client(key) as client:
        for limits in ({"tokens_per_minute": None}, {"tokens_per_minute": LIMIT}):
            limit(server, slug, **limits)
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            answers.append(answer)
    told = [_told(answer, stream=stream) for answer in answers]
    assert told[0] == told[1]
    left = [answer.headers.get("x-ratelimit-remaining-tokens") for answer in answers]
    assert left[0] is None
    assert int(left[1]) < LIMIT


def _told(answer: httpx.Response, *, stream: bool) -> dict[int, Any]:
    """Return the text of each sequence of an answer, independent of chunking, time and id."""
    if not stream:
        return {choice["index"]: choice for choice in answer.json()["choices"]}
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events.pop() == "[DONE]"
    told: dict[int, str] = defaultdict(str)
    for choice in (choice for event in events for choice in json.loads(event)["choices"]):
        text = choice["text"] if "text" in choice else choice["delta"].get("content")
        told[choice["index"]] += (text or "") + (choice["finish_reason"] or "")
    return told


def test_no_more_run_at_once_than_may(server: Server, tenant: tuple[str, str]) -> None:
    slug, key = tenant
    limit(server, slug, concurrent_requests=3)
    body = {"model": "prices", "prompt": "x", "max_tokens": 100, "ignore_eos": True}

    async def burst() -> list[int]:
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as client:
            answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(CLIENTS)))
        return [answer.status_code for answer in answers]

    for _ in range(2):
        statuses = asyncio.run(burst())
        assert set(statuses) == {200, 429}
        assert 3 <= statuses.count(200) < CLIENTS / 2


def test_prompts_of_every_shape_are_counted_before_they_run(server: Server, tenant: tuple[str, str]) -> None:
    slug, key = tenant
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as sdk:
        for call in (
            lambda most: sdk.completions.create(model="prices", prompt="What is sugar?", max_tokens=most),
            lambda most: sdk.completions.create(model="prices", prompt=["a b c", "What is tea?"], n=2, max_tokens=most),
            lambda most: sdk.completions.create(model="demo", prompt=[1, 2, 3], max_tokens=most),
            lambda most: sdk.chat.completions.create(
                model="prices", messages=[{"role": "user", "content": "What is sugar?"}], n=2, max_tokens=most
            ),
        ):
            limit(server, slug, tokens_per_request=None)
            usage = call(1).usage
            assert usage is not None
            # With one token of each answer every sequence has exactly one.
            assert usage.completion_tokens in {1, 2, 4}
            limit(server, slug, tokens_per_request=usage.total_tokens)
            assert call(1).usage == usage
            with pytest.raises(openai.BadRequestError, match="tokens_per_request would be"):
                call(2)


def test_a_chat_without_a_number_can_use_all_that_fits(server: Server, tenant: tuple[str, str]) -> None:
    slug, key = tenant
    limit(server, slug, tokens_per_request=50)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as sdk:
        message: list[Any] = [{"role": "user", "content": "What is sugar?"}]
        with pytest.raises(openai.BadRequestError, match="tokens_per_request"):
            sdk.chat.completions.create(model="prices", messages=message)
        assert sdk.chat.completions.create(model="prices", messages=message, max_tokens=5).usage
