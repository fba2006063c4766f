"""Clients that go away, engines that die: what is left must be nothing, and the next request is served."""

import asyncio
import json

import httpx

from app.demo.train import Demo
from tests.e2e.fixtures import SLOTS
from tests.e2e.server import Server, running, until

RUNNING = "tenora_engine_requests_running"
#: Runs for many seconds unless it is aborted.
LONG = {"prompt": "x", "max_tokens": 1000, "n": 8, "ignore_eos": True, "temperature": 1}


async def gone_within_a_second(server: Server) -> None:
    await asyncio.to_thread(until, lambda: server.metric(RUNNING) == 0, 1.0)


async def test_a_client_that_leaves_a_stream_has_its_request_aborted(server: Server, keys: dict[str, str]) -> None:
    headers = {"authorization": f"Bearer {keys['pricing']}"}
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as client:
        async with client.stream("POST", "/v1/completions", json=LONG | {"model": "pricing", "stream": True}) as answer:
            lines = answer.aiter_lines()  # kept: a collected iterator would close the answer
            await anext(lines)
            assert await asyncio.to_thread(server.metric, RUNNING) > 0
        await gone_within_a_second(server)


async def test_a_client_that_leaves_without_a_stream_has_its_request_aborted(
    server: Server, keys: dict[str, str]
) -> None:
    headers = {"authorization": f"Bearer {keys['pricing']}"}
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as client:
        call = asyncio.create_task(client.post("/v1/completions", json=LONG | {"model": "pricing"}))
        await asyncio.to_thread(until, lambda: server.metric(RUNNING) > 0, 10)
        call.cancel()
        await gone_within_a_second(server)


async def test_clients_that_leave_give_their_slots_back(server: Server, keys: dict[str, str]) -> None:
    """More departures than slots, on two adapters: a lease that stayed would leave the last call waiting."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        for unit, key in [*keys.items()] * 3:
            body = LONG | {"model": unit, "stream": True}
            async with client.stream(
                "POST", "/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}
            ) as answer:
                await anext(answer.aiter_lines())
        for unit, key in keys.items():
            body = {"model": unit, "prompt": "x", "max_tokens": 1}
            answer = await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == 200


async def test_an_engine_killed_in_mid_stream_comes_back_by_itself(
    trained_demo: Demo, tmp_path_factory: "object"
) -> None:
    home = tmp_path_factory.mktemp("killed")  # type: ignore[attr-defined]
    with running(home, trained_demo.base, **SLOTS) as server:
        key = server.tenant("pricing")
        assert server.publish("pricing", "pricing", trained_demo.adapters["pricing"]).status_code == 201
        headers = {"authorization": f"Bearer {key}"}
        short = {"model": "pricing", "prompt": "[INST] What is sugar? [/INST]", "max_tokens": 20, "temperature": 0}
        async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as client:
            before = (await client.post("/v1/completions", json=short)).json()["choices"]
            events = []
            async with client.stream(
                "POST", "/v1/completions", json=LONG | {"model": "pricing", "stream": True}
            ) as answer:
                async for line in answer.aiter_lines():
                    if not events:
                        server.engine_processes()[-1].kill()
                    events += [line] if line else []
            assert events[-1] == "data: [DONE]"
            error = json.loads(events[-2].removeprefix("data: "))["error"]
            assert (error["code"], error["type"]) == ("engine_unavailable", "service_unavailable_error")
            refused = await client.post("/v1/completions", json=short)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            assert (await client.get("/health/live")).status_code == 200
            # The verdict may be a second old.
            await asyncio.to_thread(until, lambda: not server.is_ready(), 5)
            await asyncio.to_thread(server.wait_ready)
            after = (await client.post("/v1/completions", json=short)).json()["choices"]
            assert after == before
        assert server.metric("tenora_engine_restarts_total") == 1
