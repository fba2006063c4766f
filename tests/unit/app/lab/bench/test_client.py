"""Closed-loop load generator against a live HTTP server."""

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

import pytest

from app.lab.bench import client
from app.lab.bench.client import Plan, run
from app.lab.bench.wire import LoadError
from tests.support.completions import KEY, completions_app
from tests.support.live_server import live_server

TOKENS = 5


def plan(url: str, **changes) -> Plan:
    given_values: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": int(url.rpartition(":")[2]),
        "path": "/v1/completions",
        "headers": {"authorization": KEY},
        "model": "pricing",
        "prompts": [[number, 2, 3] for number in range(12)],
        "concurrency": 4,
        "output_tokens": TOKENS,
    }
    return Plan(**(given_values | changes))


async def test_every_prompt_is_answered_once_over_few_connections():
    seen: list[dict] = []
    with live_server(completions_app(seen, TOKENS)) as url:
        samples = await run(plan(url))
    assert len(samples.ttft_s) == 12
    assert len(samples.gaps_s) == 12 * (TOKENS - 1)
    assert samples.output_tokens == 12 * TOKENS
    assert samples.wall_s >= max(samples.ttft_s) > 0
    assert sorted(request["body"]["prompt"][0] for request in seen) == list(range(12))
    assert len({request["client"] for request in seen}) == 4
    body = seen[0]["body"]
    assert (body["model"], body["max_tokens"], body["temperature"], body["ignore_eos"]) == ("pricing", TOKENS, 0, True)


async def test_an_answer_that_is_not_streamed_is_timed_as_a_whole():
    seen: list[dict] = []
    with live_server(completions_app(seen, TOKENS)) as url:
        samples = await run(plan(url, stream=False))
    assert (len(samples.ttft_s), samples.gaps_s, samples.output_tokens) == (12, [], 12 * TOKENS)
    assert all("stream" not in request["body"] for request in seen)


async def test_a_refused_request_fails_the_round_with_its_error():
    with live_server(completions_app([], TOKENS)) as url, pytest.raises(LoadError, match="wrong key"):
        await run(plan(url, headers={}))


async def test_an_answer_of_another_length_fails_the_round():
    with (
        live_server(completions_app([], TOKENS)) as url,
        pytest.raises(LoadError, match="The answer has 5 tokens instead of 6"),
    ):
        await run(plan(url, output_tokens=6))


async def test_a_server_that_hangs_up_fails_the_round():
    async def hang_up(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\ndata\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        with pytest.raises(LoadError, match="closed the connection"):
            await run(plan(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", concurrency=1))


def test_a_process_that_fails_is_told():
    with live_server(completions_app([], TOKENS)) as url, pytest.raises(LoadError, match="wrong key"):
        client.drive(plan(url, headers={}))


async def test_runs_as_a_process_of_its_own():
    with live_server(completions_app([], TOKENS)) as url:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app.lab.bench.client"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate(json.dumps(asdict(plan(url))).encode())
    assert process.returncode == 0
    assert json.loads(output)["output_tokens"] == 12 * TOKENS
