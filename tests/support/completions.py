"""Fake completions server at no cost, for tests of the load generator."""

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

KEY = "Bearer right"


def completions_app(seen: list[dict[str, Any]], answered: int | None = None) -> FastAPI:
    """Build a server that answers ``answered`` tokens and the usage, streamed or not, to clients with the right key.

    Args:
        seen: list to which each request is appended.
        answered: number of tokens; None: as many as requested.
    """
    app = FastAPI()

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await request.json()
        seen.append({"body": body, "client": request.client})
        if request.headers.get("authorization") != KEY:
            return JSONResponse({"error": {"message": "wrong key"}}, 401)
        tokens = body["max_tokens"] if answered is None else answered
        if not body.get("stream"):
            return JSONResponse({"choices": [{"text": "all"}], "usage": {"completion_tokens": tokens}})
        events = [{"choices": [{"text": f"{number} data: "}]} for number in range(tokens)]
        events.append({"choices": [], "usage": {"completion_tokens": tokens}})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
        return StreamingResponse(_each(lines), media_type="text/event-stream")

    return app


async def _each(lines: list[str]) -> AsyncIterator[str]:
    for line in lines:
        yield line
