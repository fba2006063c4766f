"""Metered usage equals the usage reported to clients, to the token, whatever ended the request or the server."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.demo.train import Demo
from tests.endurance.accounting import Options, run
from tests.support.chat_answers import parsed
from tests.support.fresh_metrics import fresh_metrics
from tests.support.postgres import running_postgres
from tests.support.server import Server

TENANT = "audited"
SCOPES = ("inference", "adapters:read", "usage:read")
PROMPT = "[INST] What is sugar? [/INST]"
MESSAGES: list[Any] = [{"role": "user", "content": "What is sugar?"}]
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
    """Wait until the tenant's totals are stable for longer than a record takes, and return them."""
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
    """Send requests of many shapes and return the usage that each answer reports."""
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
    assert [group["slot_s"] > 0 for group in by_adapter] == [False, True]


def test_requests_at_once_share_the_seconds_of_their_slot(server: Server, key: str, sdk: openai.OpenAI) -> None:
    before, began = used(server, key)["total"]["slot_s"], time.monotonic()
    with ThreadPoolExecutor(8) as clients:
        asked = [
            clients.submit(
                sdk.completions.create,
                model="prices",
                prompt=PROMPT,
                max_tokens=100,
                extra_body={"ignore_eos": True},
            )
            for _ in range(8)
        ]
        assert all(one.result().choices for one in asked)
    lasted = time.monotonic() - began
    assert 0 < used(server, key)["total"]["slot_s"] - before <= lasted


def test_lorax_clients_too(server: Server, key: str) -> None:
    before = used(server, key)
    body = {"inputs": PROMPT, "parameters": {"adapter_id": "prices", "max_new_tokens": 9, "details": True}}
    with server.client(key) as client:
        details = client.post("/generate", json=body).json()["details"]
        with client.stream("POST", "/generate_stream", json=body) as stream:
            tokens = sum('"token"' in line for line in stream.iter_lines())
    prompt, output = details["prompt_tokens"], details["generated_tokens"]
    assert difference(before, used(server, key)) == (2, 0, 2 * prompt, output + tokens)


def test_responses_and_messages_too(server: Server, key: str) -> None:
    """Usage equals the record to the token; the sum over requests has the cached tokens as well."""
    before = used(server, key)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 9}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}),
    ]
    told = []
    with server.client(key) as client:
        for path, body in calls:
            for stream in (False, True):
                answer = client.post(path, json={"model": "prices", "stream": stream, **body})
                told += usages([answer.json()] if not stream else parsed([answer.text]))[-1:]
    prompt = sum(one["input_tokens"] + one.get("cache_read_input_tokens", 0) for one in told)
    output = sum(one["output_tokens"] for one in told)
    assert difference(before, used(server, key)) == (4, 0, prompt, output)


def usages(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the usages in whole answers or events, in order."""
    found = (one for event in events for one in (event.get("usage"), (event.get("response") or {}).get("usage")))
    return [usage for usage in found if usage]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 1000}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1000}),
    ],
)
async def test_who_leaves_another_api_pays_no_more(server: Server, key: str, path: str, fields: dict[str, Any]) -> None:
    before = await asyncio.to_thread(used, server, key)
    body = {"model": "prices", "ignore_eos": True, "stream": True, **fields}
    headers = {"authorization": f"Bearer {key}"}
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as client,
        client.stream("POST", path, json=body) as answer,
    ):
        lines, seen = answer.aiter_lines(), 0
        while seen < 10:
            seen += "delta" in await anext(lines)
    requests, failed, _, output = difference(before, await asyncio.to_thread(used, server, key))
    assert (requests, failed) == (1, 1)
    assert 4 <= output < 500


@pytest.mark.slow
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


@pytest.mark.slow
async def test_leaving_a_whole_answer_still_costs_every_token(server: Server, key: str) -> None:
    body = {"model": "prices", "prompt": [1, 2, 3], "max_tokens": 1000, "ignore_eos": True}
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as client:
        for number in range(4):
            before = await asyncio.to_thread(used, server, key)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.post("/v1/completions", json=body), 0.4 + 0.05 * number)
            requests, failed, prompt, output = difference(before, await asyncio.to_thread(used, server, key))
            assert (requests, failed, prompt) == (1, 1, 3)
            assert 1 <= output < 1000


def test_every_token_of_a_whole_answer_is_in_vllms_metrics(server: Server, sdk: openai.OpenAI) -> None:
    names = ("generation_tokens_total", "inter_token_latency_seconds_count", "inter_token_latency_seconds_sum")

    def counts() -> list[float]:
        with server.client() as client:
            families = list(text_string_to_metric_families(fresh_metrics(client)))
        found = {sample.name: sample.value for family in families for sample in family.samples}
        return [found[f"vllm:{name}"] for name in names]

    before, began = counts(), time.monotonic()
    sdk.completions.create(model="prices", prompt=PROMPT, max_tokens=40, extra_body={"ignore_eos": True})
    lasted = time.monotonic() - began
    made, gaps, seconds = (after - earlier for after, earlier in zip(counts(), before, strict=True))
    assert (made, gaps) == (40, 39)
    assert 0 < seconds < lasted


def test_refused_requests_used_nothing(server: Server, key: str) -> None:
    before = used(server, key)
    with server.client(key) as client:
        for body in ({"model": "prices"}, {"model": "nothing", "prompt": "x"}, {"prompt": "x" * 100_000}):
            assert client.post("/v1/completions", json=body).status_code >= 400
    assert difference(before, used(server, key)) == (0, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.long
def test_usage_of_a_killed_server_is_what_clients_saw(
    trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """This is a short run of ``python -m tests.endurance.accounting``."""
    with running_postgres() as url:
        options = Options(requests=400, kills=1, clients=16)
        seen, books = run(tmp_path_factory.mktemp("killed-api"), trained_demo, options, url)
    assert seen.outcomes["cut off"]
    assert len(seen.told) >= 100
    assert books.missing == []
    assert books.wrong == {}
    assert books.records >= len(seen.told)
    assert books.summed_tokens == books.record_tokens
    assert books.budget_exact
    assert books.leases_returned
