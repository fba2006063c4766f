"""Wide requests: one tenant's requests of many sequences fill all places, and another's is answered among them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.support.server import Server

pytestmark = pytest.mark.slow

RESTARTS = "tenora_engine_restarts_total"
#: The demo engine's max_num_seqs.
PLACES = 128
#: Many more tokens than a neighbour's answers have.
LONG = 2000


def wide(prompts: int, n: int, **fields: Any) -> dict[str, Any]:
    prompt = [[11 + number] for number in range(prompts)]
    return {"model": "demo", "prompt": prompt, "n": n, "max_tokens": LONG, "ignore_eos": True} | fields


class Client:
    """Client of one tenant that counts its completed answers."""

    def __init__(self, server: Server, slug: str) -> None:
        headers = {"authorization": f"Bearer {server.tenant(slug)}"}
        self.http = httpx.AsyncClient(base_url=server.url, headers=headers, timeout=600)
        self.answered, self.begun = 0, asyncio.Event()

    async def ask(self, body: dict[str, Any]) -> dict[int, list[int]]:
        """Return the token ids of each choice."""
        body = body | {"return_token_ids": True}
        found = await (self._streamed(body) if body.get("stream") else self._whole(body))
        self.answered += 1
        return found

    async def _whole(self, body: dict[str, Any]) -> dict[int, list[int]]:
        answer = await self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        choices = answer.json()["choices"]
        assert answer.json()["usage"]["completion_tokens"] == sum(len(one["token_ids"]) for one in choices)
        assert [choice["index"] for choice in choices] == list(range(len(choices)))
        return {choice["index"]: choice["token_ids"] for choice in choices}

    async def _streamed(self, body: dict[str, Any]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        async with self.http.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    self.begun.set()
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        found.setdefault(choice["index"], []).extend(choice["token_ids"] or ())
        return found


@pytest.fixture
async def new_client(server: Server) -> AsyncIterator[Callable[[str], Client]]:
    """Factory of tenants' clients."""
    async with AsyncExitStack() as made:

        def make(slug: str) -> Client:
            client = Client(server, slug)
            made.push_async_callback(client.http.aclose)
            return client

        yield make


async def running(client: Client, body: dict[str, Any], *, requests: int) -> list[asyncio.Task[dict[int, list[int]]]]:
    """Start wide requests; return once the first one, a stream, has its first token."""
    first = asyncio.create_task(client.ask(body | {"stream": True}))
    await client.begun.wait()
    return [first, *(asyncio.create_task(client.ask(body)) for _ in range(requests - 1))]


def queue(server: Server) -> dict[str, dict[str, int]]:
    """Return the numbers of running and waiting sequences by tenant."""
    with server.client(server.admin_key) as admin:
        return {one["tenant"]: one for one in admin.get("/admin/engine").json()["tenants"]["data"]}


async def stop(tasks: list[asyncio.Task[dict[int, list[int]]]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("requests", "prompts"), [(1, 128), (1, 16), (2, 8), (4, 4)])
async def test_a_neighbour_is_answered_while_wide_requests_run(
    server: Server, new_client: Callable[[str], Client], requests: int, prompts: int
) -> None:
    slugs = [f"wide-{requests}-{prompts}-{number}" for number in range(3)]
    attackers, neighbour = [new_client(slug) for slug in slugs], new_client(f"beside-{requests}-{prompts}")
    tasks = [task for one in attackers for task in await running(one, wide(prompts, 8), requests=requests)]
    while sum(queue(server)[slug]["running"] for slug in slugs) < PLACES:
        await asyncio.sleep(0.01)
    for number in range(10):
        await neighbour.ask({"model": "demo", "prompt": f"new {number}", "max_tokens": 3, "ignore_eos": True})
    assert [one.answered for one in attackers] == [0, 0, 0], "none of the wide ones has ended by then"
    await stop(tasks)


async def test_no_more_is_made_of_many_wide_requests_than_runs(
    server: Server, new_client: Callable[[str], Client]
) -> None:
    """In vLLM a sequence's state takes 3 KB, and 50 us of the process that answers all clients; of all here 1.2 s."""
    client, neighbour = new_client("many-wide"), new_client("beside-many-wide")
    tasks = await running(client, wide(128, 8), requests=24)
    while queue(server)["many-wide"]["running"] < PLACES:
        await asyncio.sleep(0.01)
    await neighbour.ask({"model": "demo", "prompt": "new", "max_tokens": 3, "ignore_eos": True})
    assert server.metric("tenora_engine_requests_running") <= 4 * PLACES
    assert client.answered == 0
    await stop(tasks)


async def test_the_widest_request_is_answered_whole_and_right(
    server: Server, new_client: Callable[[str], Client]
) -> None:
    """1,024 sequences, of which no more than an eighth run at a time."""
    client = new_client("widest")
    asked = wide(128, 8, max_tokens=4, temperature=1.5, seed=7)
    found = await client.ask(asked)
    assert sorted(found) == list(range(1024))
    assert all(len(tokens) == 4 for tokens in found.values())
    streamed = await client.ask(asked | {"stream": True})
    assert streamed == found
    for at in (0, 77, 127):
        alone = await client.ask(asked | {"prompt": asked["prompt"][at]})
        assert [found[8 * at + choice] for choice in range(8)] == [alone[choice] for choice in range(8)]


async def test_sequences_that_wait_have_their_own_seeds(server: Server, new_client: Callable[[str], Client]) -> None:
    client = new_client("wide-seeds")
    asked = wide(32, 8, max_tokens=4, temperature=1.5, seed=5)
    found = await client.ask(asked)
    assert found == await client.ask(asked)
    assert len({tuple(tokens) for tokens in found.values()}) > 100


async def test_who_goes_away_leaves_nothing_that_waits(server: Server, new_client: Callable[[str], Client]) -> None:
    client, restarts = new_client("wide-gone"), server.metric(RESTARTS)
    for _ in range(3):
        tasks = await running(client, wide(128, 8), requests=2)
        client.begun.clear()
        await stop(tasks)
    while "wide-gone" in queue(server):
        await asyncio.sleep(0.01)
    assert sorted(await client.ask(wide(128, 8, max_tokens=1))) == list(range(1024))
    assert server.metric(RESTARTS) == restarts
