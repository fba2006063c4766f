"""Open-loop load generator against live servers."""

import asyncio
import itertools
import json
import sys
from dataclasses import asdict
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from app.lab.bench import open_loop
from app.lab.bench.open_loop import NOT_SENT, Generator, Plan, Run, Sample
from tests.support.completions import KEY, completions_app
from tests.support.live_server import live_server

TOKENS = 5
HEADERS = {"authorization": KEY}


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def request(at: float = 0.0, **changes) -> open_loop.Request:
    given: dict[str, Any] = {"model": "pricing", "headers": HEADERS, "prompt": [1, 2, 3], "output_tokens": TOKENS}
    return open_loop.Request(at, **(given | changes))


async def answered(url: str, *requests: open_loop.Request, **changes) -> Run:
    return await Generator(Plan(port_of(url), requests, **changes)).run()


async def test_requests_are_sent_when_due():
    seen: list[dict] = []
    due = [0.3, 0.0, 0.1]
    with live_server(completions_app(seen, TOKENS)) as url:
        run = await answered(url, *(request(at, prompt=[number]) for number, at in enumerate(due)))
    assert [body["body"]["prompt"] for body in seen] == [[1], [2], [0]]
    for at, sample in zip(due, run.samples, strict=True):
        assert sample.ok
        assert at <= sample.sent <= sample.first <= sample.end <= run.wall_s
        assert sample.ttft_s == sample.first - sample.sent
        assert len(sample.gaps_ms) == TOKENS - 1
        assert sample.tokens == TOKENS


async def test_a_failure_is_a_sample_and_the_others_go_on():
    with live_server(completions_app([], TOKENS)) as url:
        run = await answered(url, request(headers={}), request(output_tokens=6), request())
    refused, short, good = run.samples
    assert refused.why.startswith("HTTP/1.1 401")
    assert "wrong key" in refused.why
    assert (refused.first, refused.ttft_s, refused.tokens) == (None, None, 0)
    assert short.why == "the answer has 5 tokens instead of 6"
    assert good.ok


async def test_a_server_that_is_not_there_is_told():
    with live_server(completions_app([], TOKENS)) as url:
        pass
    (sample,) = (await answered(url, request())).samples
    assert sample.why.startswith("cannot connect")
    assert sample.sent is not None


async def test_an_answer_that_breaks_off_keeps_what_came():
    async def hang_up(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        event = b'data: {"choices": [{"text": "a"}]}\n\n'
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(event), event))
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        run = await answered(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", request())
    (sample,) = run.samples
    assert sample.why.startswith("The server closed the connection")
    assert sample.first is not None


async def test_an_answer_that_does_not_come_is_given_up_at_the_end():
    async def silent(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        run = await answered(url, request(), request(after=0), drain_s=0.2)
    waiting, next_one = run.samples
    assert waiting.why == "no answer before the end of the run"
    assert waiting.end >= 0.2
    assert next_one == Sample(why=NOT_SENT)


async def test_one_after_another_makes_a_closed_loop_until_the_stop():
    seen: list[dict] = []
    with live_server(completions_app(seen, TOKENS)) as url:
        chain = [request(prompt=[number], after=number - 1 if number else None) for number in range(5)]
        run = await answered(url, *chain, request(0.2), stop_s=0.1)
    assert [body["body"]["prompt"] for body in seen] == [[number] for number in range(5)]
    # A loop with one request at a time needs one connection only.
    assert len({body["client"] for body in seen}) == 1
    *loop, late = run.samples
    assert all(after.sent >= before.end for before, after in itertools.pairwise(loop))
    assert late == Sample(why=NOT_SENT)


async def test_other_calls_need_only_succeed_and_headers_are_read():
    app = FastAPI()

    @app.post("/v1/load_lora_adapter")
    async def load(call: Request) -> Response:
        body = await call.json()
        headers = {"x-tenora-load-ms": "12.5"}
        return Response("Success", headers=headers) if body["lora_name"] == "a" else JSONResponse({"error": "no"}, 400)

    with live_server(app) as url:
        calls = [request(path="/v1/load_lora_adapter", body={"lora_name": name}) for name in "ab"]
        good, bad = (await answered(url, *calls)).samples
    assert good.ok
    assert good.load_ms == 12.5
    assert (good.tokens, good.gaps_ms) == (0, [])
    assert good.first is not None
    assert bad.why.startswith("HTTP/1.1 400")


async def test_runs_as_a_process_of_its_own():
    with live_server(completions_app([], TOKENS)) as url:
        plan = json.dumps(asdict(Plan(port_of(url), [request()] * 3)))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app.lab.bench.open_loop"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate(plan.encode())
    assert process.returncode == 0
    assert [Sample(**sample).ok for sample in json.loads(output)["samples"]] == [True] * 3


def test_is_driven_from_another_process():
    with live_server(completions_app([], TOKENS)) as url:
        run = open_loop.drive(Plan(port_of(url), [request(), request(headers={})]))
    assert [sample.ok for sample in run.samples] == [True, False]
    assert run.cpu_s > 0


async def test_nothing_to_send():
    assert (await Generator(Plan(1, [])).run()).samples == []


@pytest.mark.parametrize("first", [None, 2.0])
def test_the_first_token_is_timed_from_the_send(first):
    sample = Sample(sent=0.5, first=first)
    assert sample.ttft_s == (None if first is None else 1.5)
