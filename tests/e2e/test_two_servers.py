"""Two whole servers on one PostgreSQL share their limits, whichever server gets a request."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.demo.train import Demo
from tests.support.postgres import running_postgres
from tests.support.server import Server, serving, set_up, together
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow

CLIENTS = 64
#: Consecutive refusals after which a client stops: some refusals are temporary, until other requests release tokens.
ENOUGH = 8
LIMIT = 4000
PROMPT, ANSWER = 10, 20


@pytest.fixture(scope="module")
def pair(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("pair")
    homes = [folder / "first", folder / "second"]
    for home in homes:
        home.mkdir()
    with contextlib.ExitStack() as stack:
        settings: dict[str, Any] = SLOTS | together(folder, stack.enter_context(running_postgres()))
        admin_key = set_up(homes[0], trained_demo.base, **settings)
        yield [stack.enter_context(serving(home, trained_demo.base, admin_key, **settings)) for home in homes]


def limited(pair: list[Server], **limits: int) -> str:
    """Create a tenant with these limits and return a key of it."""
    slug = f"limited-{uuid.uuid4().hex[:8]}"
    key = pair[0].tenant(slug, scopes=("inference",))
    with pair[0].client(pair[0].admin_key) as admin:
        assert admin.patch(f"/admin/tenants/{slug}", json={"limits": limits}).status_code == 200
    return key


async def _greedy(pair: list[Server], key: str) -> list[tuple[int, int, int]]:
    """Run many clients on both servers until the limit is exhausted.

    For each answer: the server's number, its tokens, and the tokens reserved for it.
    """
    got: list[tuple[int, int, int]] = []

    async def ask(client: httpx.AsyncClient, chance: random.Random) -> None:
        refused = 0
        while refused < ENOUGH:
            number, wanted = chance.randrange(2), chance.randint(1, ANSWER)
            prompt = [chance.randrange(10, 200) for _ in range(PROMPT)]
            # Some answers end early and release the rest of their reservation.
            body: dict[str, Any] = {"prompt": prompt, "max_tokens": wanted, "temperature": 1}
            answer = await client.post(f"{pair[number].url}/v1/completions", json=body)
            if answer.status_code == 429:
                refused += 1
                await asyncio.sleep(0.1)
                continue
            assert answer.status_code == 200, answer.text
            refused = 0
            got.append((number, answer.json()["usage"]["total_tokens"], PROMPT + wanted))

    limits = httpx.Limits(max_connections=2 * CLIENTS)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(timeout=120, headers=headers, limits=limits) as client:
        await asyncio.gather(*(ask(client, random.Random(number)) for number in range(CLIENTS)))
    return got


def test_together_they_grant_a_limit_and_no_token_more(pair: list[Server]) -> None:
    # A monthly budget does not refill during the test, however slow the machine is.
    key = limited(pair, tokens_per_month=LIMIT)
    got = asyncio.run(_greedy(pair, key))
    used = sum(tokens for _, tokens, _ in got)
    assert 0.99 * LIMIT <= used <= LIMIT
    assert used < sum(taken for _, _, taken in got), "no answer ended early: nothing was given back"
    assert {number for number, _, _ in got} == {0, 1}


def test_together_they_run_no_more_requests_at_once_than_may(pair: list[Server]) -> None:
    key = limited(pair, concurrent_requests=3)
    body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True}

    with contextlib.ExitStack() as open_streams:
        clients = [open_streams.enter_context(server.client(key)) for server in pair]

        def status(number: int) -> int:
            answer = clients[number].stream("POST", "/v1/completions", json=body)
            return open_streams.enter_context(answer).status_code

        assert [status(number) for number in (0, 1, 1)] == [200, 200, 200]
        # Neither engine can end its streams before the last request has its answer.
        with paused(pair[0]), paused(pair[1]):
            assert [status(number) for number in (0, 1)] == [429, 429]


@contextlib.contextmanager
def paused(server: Server) -> Iterator[None]:
    """Keep the engine of a server from running."""
    processes = server.engine_processes()
    assert processes
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def test_each_says_what_both_have_counted(pair: list[Server]) -> None:
    key = limited(pair, requests_per_minute=1000)
    body = {"prompt": [1, 2, 3], "max_tokens": 1}
    remaining = []
    for server in (*pair, *pair):
        with server.client(key) as client:
            answer = client.post("/v1/completions", json=body)
        remaining.append(answer.headers["x-ratelimit-remaining-requests"])
    assert remaining == ["999", "998", "997", "996"]
