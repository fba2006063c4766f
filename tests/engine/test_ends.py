"""Clients that disconnect and engines that crash: nothing is leaked and the next request is served."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.demo.train import Demo
from tests.support.server import Server, running, until
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow

RUNNING = "tenora_engine_requests_running"
#: Runs for many seconds unless it is aborted.
LONG = {"prompt": "x", "max_tokens": 1000, "n": 8, "ignore_eos": True, "temperature": 1}


async def gone_within_a_second(server: Server) -> None:
    with server.client(server.admin_key) as admin:
        await asyncio.to_thread(until, lambda: admin.get("/admin/engine").json()["queue"]["running"] == 0, 1.0)
    assert await asyncio.to_thread(server.metric, RUNNING) == 0


async def test_a_client_that_leaves_a_stream_has_its_request_aborted(server: Server, keys: dict[str, str]) -> None:
    headers = {"authorization": f"Bearer {keys['pricing']}"}
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as client:
        async with client.stream("POST", "/v1/completions", json=LONG | {"model": "pricing", "stream": True}) as answer:
            lines = answer.aiter_lines()  # kept: a collected iterator would close the answer
            await anext(lines)
            assert await asyncio.to_thread(server.metric, RUNNING) > 0
        await gone_within_a_second(server)


async def test_a_disconnect_aborts_a_request_without_stream(server: Server, keys: dict[str, str]) -> None:
    headers = {"authorization": f"Bearer {keys['pricing']}"}
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as client:
        call = asyncio.create_task(client.post("/v1/completions", json=LONG | {"model": "pricing"}))
        await asyncio.to_thread(until, lambda: server.metric(RUNNING) > 0, 10)
        call.cancel()
        await gone_within_a_second(server)


async def test_clients_that_leave_give_their_slots_back(server: Server, keys: dict[str, str]) -> None:
    """There are more disconnects than slots, on two adapters: a leaked lease would block the last call."""
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


async def test_clients_that_do_not_read_hold_no_slot(server: Server, keys: dict[str, str]) -> None:
    """Both slots' answers exceed the connections' buffers: the clients do not read, and the engine is done."""
    headers = [{"authorization": f"Bearer {key}"} for key in keys.values()]
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client, contextlib.AsyncExitStack() as unread:
        answers = []
        for unit, header in zip(keys, headers, strict=True):
            body = LONG | {"model": unit, "stream": True, "logprobs": 20, "max_tokens": 500}
            answers.append(
                await unread.enter_async_context(client.stream("POST", "/v1/completions", json=body, headers=header))
            )
        await asyncio.to_thread(until, lambda: server.metric("tenora_engine_window_used") == 0, 50)
        for answer in answers:
            assert [line async for line in answer.aiter_lines() if line][-1] == "data: [DONE]"


@pytest.fixture(scope="module")
def own(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Separate server for tests that crash it."""
    home = tmp_path_factory.mktemp("ends")
    with running(home, trained_demo.base, **SLOTS, TENORA_GRACE_SECONDS="1") as server:
        yield server


@pytest.fixture(scope="module")
def key(own: Server, trained_demo: Demo) -> str:
    key = own.tenant("pricing")
    assert own.publish("pricing", "pricing", trained_demo.adapters["pricing"]).status_code == 201
    return key


def error_at_the_end(lines: list[str]) -> tuple[str, str]:
    """Return code and type of the error that ends a stream."""
    assert lines[-1] == "data: [DONE]"
    error: dict[str, Any] = json.loads(lines[-2].removeprefix("data: "))["error"]
    return error["code"], error["type"]


STOPPED = ("engine_unavailable", "service_unavailable_error")


@pytest.mark.parametrize("victim", ["engine", "fork server"])
async def test_an_engine_killed_in_mid_stream_comes_back_by_itself(own: Server, key: str, victim: str) -> None:
    restarts, processes = own.metric("tenora_engine_restarts_total"), own.engine_processes()
    victims = dict(zip(("engine", "fork server"), (*processes, own.fork_server()), strict=True))
    headers = {"authorization": f"Bearer {key}"}
    short = {"model": "pricing", "prompt": "[INST] What is sugar? [/INST]", "max_tokens": 20, "temperature": 0}
    async with httpx.AsyncClient(base_url=own.url, timeout=60, headers=headers) as client:
        before = (await client.post("/v1/completions", json=short)).json()["choices"]
        events = []
        async with client.stream("POST", "/v1/completions", json=LONG | {"model": "pricing", "stream": True}) as answer:
            async for line in answer.aiter_lines():
                if not events:
                    victims[victim].kill()
                events += [line] if line else []
        assert error_at_the_end(events) == STOPPED
        refused = await client.post("/v1/completions", json=short)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert (await client.get("/health/live")).status_code == 200
        await asyncio.to_thread(own.wait_restarted)
        after = (await client.post("/v1/completions", json=short)).json()["choices"]
        assert after == before
    assert own.metric("tenora_engine_restarts_total") == restarts + 1
    assert not [process for process in processes if process.is_running()], "something of the old engine is left"
    assert own.engine_processes()[0].ppid() == own.fork_server().pid


async def test_a_dead_engine_ends_a_wide_request_that_waits(own: Server, key: str) -> None:
    """Prompts already submitted to vLLM have ended or end with the engine.

    The other prompts wait for turns that never come.
    """
    wide = {"model": "pricing", "prompt": [[11 + number] for number in range(128)], "n": 8, "stream": True}
    headers, events = {"authorization": f"Bearer {key}"}, list[str]()
    async with (
        httpx.AsyncClient(base_url=own.url, timeout=60, headers=headers) as client,
        client.stream("POST", "/v1/completions", json=wide | {"max_tokens": 20, "ignore_eos": True}) as answer,
    ):
        async for line in answer.aiter_lines():
            if '"finish_reason":"length"' in line and not events:
                own.engine_processes()[0].kill()
                events.append(line)
            elif events and line:
                events.append(line)
    assert error_at_the_end(events) == STOPPED
    await asyncio.to_thread(own.wait_restarted)


def test_an_engine_is_one_process_with_its_own_processor(own: Server) -> None:
    (engine,) = own.engine_processes()
    assert len(os.sched_getaffinity(engine.pid)) == 1
    # These threads talk to the server and would wait for the steps there.
    sockets = [thread.id for thread in engine.threads() if _name(engine, thread.id).startswith("ZMQ")]
    assert sockets
    for thread in sockets:
        assert os.sched_getaffinity(thread) == os.sched_getaffinity(own.process.pid)


def _name(process: psutil.Process, thread: int) -> str:
    return Path(f"/proc/{process.pid}/task/{thread}/comm").read_text().strip()


async def test_a_shutdown_ends_late_requests_with_an_error(own: Server, key: str) -> None:
    """This is the last test of this file: streams, whole answers and requests that wait for a slot.

    Each has its record.
    """
    headers = {"authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=own.url, timeout=60, headers=headers, limits=limits) as client:
        begun = [asyncio.Event() for _ in range(4)]

        async def stream(began: asyncio.Event) -> list[str]:
            lines = []
            async with client.stream("POST", "/v1/completions", json=LONG | {"model": "pricing", "stream": True}) as it:
                async for line in it.aiter_lines():
                    lines += [line] if line else []
                    began.set()
            return lines

        streams = [asyncio.create_task(stream(began)) for began in begun]
        await asyncio.gather(*(began.wait() for began in begun))
        # More sequences than the window has room for.
        others = [asyncio.create_task(client.post("/v1/completions", json=LONG)) for _ in range(64)]
        await asyncio.to_thread(until, lambda: own.metric("tenora_engine_requests_waiting") > 0, 30)
        own.process.send_signal(signal.SIGTERM)
        for lines in await asyncio.gather(*streams):
            assert error_at_the_end(lines) == STOPPED
        for answer in await asyncio.gather(*others):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
    # This exit status shows that uvicorn has handled the signal.
    assert await asyncio.to_thread(own.process.wait, 60) == -signal.SIGTERM
    with sqlite3.connect(own.home / "tenora.db") as database:
        records = database.execute("select status, output_tokens from usage order by at desc limit 4").fetchall()
    assert len(records) == 4
    assert all(status == 503 for status, _ in records)
    assert all(tokens > 0 for _, tokens in records)
