"""Small HTTP server with files and batches in OpenAI's form, whose batches run as fast as a test lets them.

The client's tests use it where they need a batch that stands still, or a server that fails in between.
"""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.live_server import live_server


@dataclass
class BatchServer:
    """State of the server.

    Attributes:
        limit: number of lines that may run; a batch stands still there.
        fail_next: number of further requests that are answered with 503.
        error_of: message of a line's error by its id; None: the line succeeds.
        damage: bytes that are sent after a file's content, as if they belonged to it.
        problems: problems of the next batch, which then fails.
        requests: method and path of each request.
    """

    url: str = ""
    limit: float = float("inf")
    fail_next: int = 0
    error_of: Callable[[str], str | None] = lambda _: None
    damage: bytes = b""
    problems: list[dict[str, Any]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    polled: threading.Event = field(default_factory=threading.Event)

    def input_of(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.files[batch["input_file_id"]][1].splitlines()]

    def created(self, path: str = "/v1/batches") -> int:
        """Return how often something was created there."""
        return self.requests.count(f"POST {path}")


@contextmanager
def batch_server() -> Iterator[BatchServer]:
    """Run the server while the block lasts."""
    server = BatchServer()
    with live_server(_Unsteady(_Routes(server).app, server)) as url:
        server.url = url
        yield server


class _Unsteady:
    """Middleware that notes requests, and answers some of them with 503."""

    def __init__(self, app: ASGIApp, server: BatchServer) -> None:
        self._app, self._server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._server.requests.append(f"{scope['method']} {scope['path']}")
            if self._server.fail_next:
                self._server.fail_next -= 1
                error = {"error": {"message": "Not now.", "type": "server_error", "code": "busy", "param": None}}
                await JSONResponse(error, 503)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Routes:
    """Routes of the server."""

    def __init__(self, server: BatchServer) -> None:
        self._server = server
        self.app = Starlette(
            routes=[
                Route("/v1/files", self._upload, methods=["POST"]),
                Route("/v1/files", self._files),
                Route("/v1/files/{id}", self._file, methods=["GET", "DELETE"]),
                Route("/v1/files/{id}/content", self._content),
                Route("/v1/batches", self._create, methods=["POST"]),
                Route("/v1/batches", self._batches),
                Route("/v1/batches/{id}", self._batch),
                Route("/v1/batches/{id}/cancel", self._cancel, methods=["POST"]),
            ]
        )

    async def _upload(self, request: Request) -> Response:
        async with request.form() as form:
            content, name = await form["file"].read(), form["file"].filename
        file_id = f"file-{len(self._server.files):032x}"
        self._server.files[file_id] = (name, content)
        return JSONResponse(_facts(self._server, file_id))

    async def _files(self, request: Request) -> Response:
        rows = [_facts(self._server, file_id) for file_id in reversed(self._server.files)]
        return JSONResponse(_page(request, rows))

    async def _file(self, request: Request) -> Response:
        file_id = request.path_params["id"]
        if file_id not in self._server.files:
            return _missing("file_id")
        if request.method == "DELETE":
            del self._server.files[file_id]
            return JSONResponse({"id": file_id, "object": "file", "deleted": True, "deletion": "del_1"})
        return JSONResponse(_facts(self._server, file_id))

    async def _content(self, request: Request) -> Response:
        data = self._server.files[request.path_params["id"]][1]
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        return Response(
            data + self._server.damage, media_type="application/jsonl", headers={"repr-digest": f"sha-256=:{digest}:"}
        )

    async def _create(self, request: Request) -> Response:
        body = await request.json()
        if body["input_file_id"] not in self._server.files:
            return _missing("input_file_id")
        return JSONResponse(_created(self._server, body))

    async def _batches(self, request: Request) -> Response:
        return JSONResponse(_page(request, list(reversed(self._server.batches.values()))))

    async def _batch(self, request: Request) -> Response:
        batch = self._server.batches.get(request.path_params["id"])
        if batch is None:
            return _missing("batch_id")
        _advance(self._server, batch)
        self._server.polled.set()
        return JSONResponse(batch)

    async def _cancel(self, request: Request) -> Response:
        batch = self._server.batches[request.path_params["id"]]
        batch["status"] = "cancelling"
        return JSONResponse(batch)


def _facts(server: BatchServer, file_id: str) -> dict[str, Any]:
    name, content = server.files[file_id]
    facts = {"id": file_id, "object": "file", "filename": name, "bytes": len(content), "status": "processed"}
    return {**facts, "purpose": "batch", "created_at": 1_790_000_000, "expires_at": 1_792_592_000}


def _page(request: Request, rows: list[dict[str, Any]]) -> dict[str, Any]:
    after, limit = request.query_params.get("after"), int(request.query_params.get("limit", 20))
    start = next((place + 1 for place, row in enumerate(rows) if row["id"] == after), 0)
    return {"object": "list", "data": rows[start : start + limit], "has_more": len(rows) > start + limit}


def _created(server: BatchServer, body: dict[str, Any]) -> dict[str, Any]:
    options = body.get("tenora", {})
    batch = {
        "id": f"batch_{len(server.batches):016x}",
        "object": "batch",
        "status": "validating",
        "created_at": int(time.time()),
        "expires_at": int(time.time()) + 86400,
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "usage": _usage(0),
        "errors": None,
        **body,
        "model": options.get("model"),
        "tenora": {"model": None, "width": None, "cost": "0", "warnings": [], **options},
    }
    if server.problems:
        batch |= {"status": "failed", "errors": {"object": "list", "data": server.problems}}
        server.problems = []
    server.batches[batch["id"]] = batch
    return batch


def _advance(server: BatchServer, batch: dict[str, Any]) -> None:
    """Run lines up to the limit, and end the batch after its last one."""
    if batch["status"] in ("completed", "failed", "cancelled"):
        return
    lines = server.input_of(batch)
    done = min(int(min(server.limit, len(lines))), len(lines))
    ended = batch["status"] == "cancelling" or done == len(lines)
    results = [_result(server, line) for line in lines[:done]]
    good = [result for result in results if result["error"] is None]
    counts = {"total": len(lines), "completed": len(good), "failed": done - len(good)}
    batch |= {"request_counts": counts, "usage": _usage(len(good))}
    if not ended:
        batch["status"] = "in_progress"
        return
    batch["status"] = "cancelled" if batch["status"] == "cancelling" else "completed"
    bad = [result for result in results if result["error"] is not None]
    for name, kept in (("output_file_id", good), ("error_file_id", bad)):
        if kept:
            batch[name] = f"file-{len(server.files):032x}"
            content = "".join(f"{json.dumps(result)}\n" for result in kept).encode()
            server.files[batch[name]] = (f"{batch['id']}_{name[:-8]}.jsonl", content)


def _usage(lines: int) -> dict[str, Any]:
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {"input_tokens": 3 * lines, "output_tokens": 2 * lines, "total_tokens": 5 * lines, **details}


def _result(server: BatchServer, line: dict[str, Any]) -> dict[str, Any]:
    message = server.error_of(line["custom_id"])
    if message is not None:
        return {"custom_id": line["custom_id"], "response": None, "error": {"code": "x", "message": message}}
    text = json.dumps(line["body"])[-40:]
    body = {
        "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    response = {"status_code": 200, "request_id": "r", "body": body}
    return {"custom_id": line["custom_id"], "response": response, "error": None, "tenora": {"version": "unit/a@1"}}


def _missing(param: str) -> Response:
    error = {"message": "There is no such thing.", "type": "not_found_error", "code": "not_found", "param": param}
    return JSONResponse({"error": error}, 404)
