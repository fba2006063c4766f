"""Concurrent clients of a batch's lines against a live server."""

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.lab.bench.batch_clients import run
from app.lab.bench.batch_lines import ENDPOINT, compare, make_lines, read_results, write_lines
from tests.support.live_server import live_server


class Chats:
    """Server of chats that answers once as many requests as clients are there."""

    def __init__(self, clients: int, refused: str = "") -> None:
        self._barrier, self._refused = asyncio.Barrier(clients), refused
        self.keys: set[str] = set()
        self.app = Starlette(routes=[Route(ENDPOINT, self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> Response:
        body: dict[str, Any] = await request.json()
        self.keys.add(request.headers["authorization"])
        await self._barrier.wait()
        if body["model"] == self._refused:
            return JSONResponse({"error": {"message": "Not now."}}, 503)
        return JSONResponse({"usage": {"prompt_tokens": 1, "completion_tokens": body["max_tokens"]}})


async def test_each_client_takes_the_next_line_after_an_answer(tmp_path):
    server = Chats(clients=4)
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = make_lines(12, ["one", "two"], ["word"], seed=1, words_seed="a")
    write_lines(source, lines)
    with live_server(server.app) as url:
        await run(source, target, int(url.rpartition(":")[2]), "tnr_key", clients=4)
    assert compare(lines, read_results(target)) == {"lost": 0, "double": 0}
    assert server.keys == {"Bearer tnr_key"}


async def test_a_refused_line_is_in_the_output_with_its_status(tmp_path):
    server = Chats(clients=2, refused="two")
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = make_lines(6, ["one", "two"], ["word"], seed=1, words_seed="a")
    write_lines(source, lines)
    with live_server(server.app) as url:
        await run(source, target, int(url.rpartition(":")[2]), "tnr_key", clients=2)
    statuses = sorted(row["response"]["status_code"] for row in read_results(target))
    assert statuses == [200] * 3 + [503] * 3
    assert compare(lines, read_results(target))["lost"] == 3
