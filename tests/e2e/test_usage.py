"""What was used is what clients were told, to the token, whatever ended the request or the server."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest

from app.demo.train import Demo
from tests.e2e.fixtures import SLOTS
from tests.e2e.server import Server, running, serving, until

TENANT = "audited"
SCOPES = ("inference", "adapters:read", "usage:read")
PROMPT = "[INST] What is sugar? [/INST]"
MESSAGES = [{"role": "user", "content": "What is sugar?"}]
SUMS = ("requests", "failed", "prompt_tokens", "output_tokens")


@pytest.fixture(scope="module")
def key(server: Server, trained_demo: Demo) -> str:
    key = server.tenant(TENANT, scopes=SCOPES)
    assert server.publish(TENANT, "prices", trained_demo.adapters["pricing"]).status_code == 201
    return key


@pytest.fixture
def sdk(server: Server, key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
        yield client


def used(server: Server, key: str, **query: str) -> dict[str, Any]:
    """The tenant's totals once they have stood still for longer than a record takes."""
    with server.client(key) as client:
        found, since = None, time.monotonic()
        while time.monotonic() - since < 2.5:
            time.sleep(0.1)
            report: dict[str, Any] = client.get("/v1/usage", params={"by": "", **query}).json()
            if report != found:
                found, since = report, time.monotonic()
    assert found is not None
    return found


def difference(before: dict[str, Any], after: dict[str, Any]) -> tuple[int, ...]:
    return tuple(after["total"][name] - before["total"][name] for name in SUMS)


def answers(sdk: openai.OpenAI, **body: Any) -> list[Any]:
    """The usage that each answer of many shapes says."""
    plain: dict[str, Any] = {"model": "prices", "temperature": 1, "max_tokens": 7, **body}
    streamed = plain | {"stream": True, "stream_options": {"include_usage": True}}
    whole = [
        sdk.completions.create(prompt=PROMPT, **plain),
        sdk.completions.create(prompt=PROMPT, n=3, **plain),
        sdk.completions.create(prompt=[PROMPT, "sugar", "and tea"], n=2, logprobs=2, **plain),
        sdk.completions.create(prompt=[5, 6, 7, 8], **plain | {"model": "demo"}),
        sdk.completions.create(prompt=PROMPT, stop=["a", "e", "i"], echo=True, **plain | {"max_tokens": 60}),
        sdk.chat.completions.create(messages=MESSAGES, n=2, **plain),
        sdk.completions.create(prompt="the same " * 40, **plain),
        sdk.completions.create(prompt="the same " * 40, **plain),
    ]
    streams = [
        sdk.completions.create(prompt=PROMPT, **streamed),
        sdk.completions.create(prompt=[PROMPT, "tea"], n=2, **streamed),
        sdk.completions.create(prompt=PROMPT, stop=["a", "e", "i"], **streamed | {"max_tokens": 60}),
        sdk.chat.completions.create(messages=MESSAGES, n=2, **streamed),
    ]
    last = [[chunk.usage for chunk in stream if chunk.usage][-1] for stream in streams]
    return [answer.usage for answer in whole] + last


def test_sums_are_what_clients_were_told(server: Server, key: str, sdk: openai.OpenAI) -> None:
    before = used(server, key)
    told = answers(sdk)
    prompt, output = (sum(getattr(one, f"{kind}_tokens") for one in told) for kind in ("prompt", "completion"))
    assert difference(before, used(server, key)) == (len(told), 0, prompt, output)
    by_adapter = used(server, key, by="adapter")["data"]
    assert {group["adapter"] for group in by_adapter} == {"", f"{TENANT}/prices"}


def test_lorax_clients_too(server: Server, key: str) -> None:
    before = used(server, key)
    body = {"inputs": PROMPT, "parameters": {"adapter_id": "prices", "max_new_tokens": 9, "details": True}}
    with server.client(key) as client:
        details = client.post("/generate", json=body).json()["details"]
        with client.stream("POST", "/generate_stream", json=body) as stream:
            tokens = sum('"token"' in line for line in stream.iter_lines())
    prompt, output = details["prompt_tokens"], details["generated_tokens"]
    assert difference(before, used(server, key)) == (2, 0, 2 * prompt, output + tokens)


async def test_who_goes_away_pays_for_what_was_produced_and_no_more(server: Server, key: str) -> None:
    before = await asyncio.to_thread(used, server, key)
    body = {"model": "prices", "prompt": [1, 2, 3], "max_tokens": 1000, "ignore_eos": True, "stream": True}
    headers = {"authorization": f"Bearer {key}"}
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as client,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines, seen = answer.aiter_lines(), 0
        while seen < 10:
            seen += (await anext(lines)).startswith("data: {")
    requests, failed, prompt, output = difference(before, await asyncio.to_thread(used, server, key))
    assert (requests, failed, prompt) == (1, 1, 3)
    assert 10 <= output < 500


def test_refused_requests_used_nothing(server: Server, key: str) -> None:
    before = used(server, key)
    with server.client(key) as client:
        for body in ({"model": "prices"}, {"model": "nothing", "prompt": "x"}, {"prompt": "x" * 100_000}):
            assert client.post("/v1/completions", json=body).status_code >= 400
    assert difference(before, used(server, key)) == (0, 0, 0, 0)


def test_a_server_that_is_killed_has_the_records_of_all_that_clients_saw_whole(
    trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("killed-api")
    with running(home, trained_demo.base, **SLOTS) as server:
        key = server.tenant(TENANT, scopes=SCOPES)
        engine = server.engine_processes()
        whole = asyncio.run(_until_killed(server, key))
        server.process.wait()
        _, alive = psutil.wait_procs(engine, timeout=30)
        assert not alive, "an engine outlived its server"
    assert whole
    with serving(home, trained_demo.base, server.admin_key, **SLOTS) as again:
        total = used(again, key)["total"]
        # The last ones may have been written down, and not have reached their clients.
        assert len(whole) <= total["requests"] - total["failed"] <= len(whole) + _CLIENTS
        assert sum(whole) <= total["output_tokens"]
        assert total["prompt_tokens"] == 4 * total["requests"]
        assert not list((home / "usage").glob("*.damaged"))


_CLIENTS = 8


async def _until_killed(server: Server, key: str) -> list[int]:
    """Output tokens of each answer that a client saw whole before the server was killed under it."""
    whole: list[int] = []
    headers = {"authorization": f"Bearer {key}"}

    async def ask(client: httpx.AsyncClient) -> None:
        body = {"prompt": [1, 2, 3, 4], "max_tokens": 5, "ignore_eos": True}
        with contextlib.suppress(httpx.TransportError):
            while True:
                answer = await client.post("/v1/completions", json=body)
                whole.append(answer.json()["usage"]["completion_tokens"])

    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as client:
        asking = [asyncio.create_task(ask(client)) for _ in range(_CLIENTS)]
        await asyncio.to_thread(until, lambda: len(whole) >= 100, 60)
        server.process.kill()
        await asyncio.gather(*asking)
    return whole
