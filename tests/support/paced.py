"""Fake server with a steady token rate, for workloads that measure time. It has Tenora's routes and vLLM's."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from transformers import LlamaConfig

from adapters.cache import WEIGHTS_NAME
from app.lab.bench.open_loop import Sample
from app.lab.bench.pairs import Setup
from app.lab.bench.timeline import Served

PACE_S = 0.002
METRICS = 'tenora_load_seconds_sum{phase="stage"} 1.5\ntenora_load_seconds_count{phase="stage"} 3.0\n'


@dataclass
class Seen:
    """Requests to the server, in order, and its configured answers.

    Attributes:
        models: requested models.
        loaded: bodies of the requests to load an adapter.
        tenants: changes by tenant.
        tiers: tier to report for each adapter until its second request.
    """

    models: list[str] = field(default_factory=list)
    loaded: list[dict[str, Any]] = field(default_factory=list)
    tenants: dict[str, Any] = field(default_factory=dict)
    tiers: dict[str, str] = field(default_factory=dict)


def paced_app(seen: Seen) -> FastAPI:
    app = FastAPI()

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await request.json()
        seen.models.append(body["model"])
        return StreamingResponse(_events(body["max_tokens"]), media_type="text/event-stream")

    @app.post("/v1/load_lora_adapter")
    async def load(request: Request) -> Response:
        seen.loaded.append(await request.json())
        return PlainTextResponse("loaded")

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(METRICS)

    @app.get("/admin/engine")
    async def engine() -> Response:
        # An adapter has a slot from its second request on.
        tiers = {name: "slot" if seen.models.count(name) > 1 else tier for name, tier in seen.tiers.items()}
        rows = [{"name": f"bench/{name}@1", "tier": tier} for name, tier in tiers.items()]
        return JSONResponse({"versions": {"data": rows}})

    @app.patch("/admin/tenants/{tenant}")
    async def patch(tenant: str, request: Request) -> Response:
        seen.tenants[tenant] = await request.json()
        return JSONResponse({})

    return app


async def _events(tokens: int) -> AsyncIterator[str]:
    for _ in range(tokens):
        await asyncio.sleep(PACE_S)
        yield 'data: {"choices": [{"text": "x"}]}\n\n'
    yield f'data: {{"choices": [], "usage": {{"completion_tokens": {tokens}}}}}\n\ndata: [DONE]\n\n'


def setup_in(folder: Path, names: list[str], slots: int) -> Setup:
    """Create a base and adapters that are never loaded."""
    LlamaConfig(vocab_size=100).save_pretrained(folder / "base")
    adapters = {name: folder / name for name in names}
    for path in adapters.values():
        path.mkdir()
        (path / WEIGHTS_NAME).write_bytes(b"weights")
    return Setup(folder, folder / "base", adapters, slots=slots, host_adapters=2, max_rank=8, dtype="float32")


def served(group: str, sent: float | None, tokens: list[float], **rest: Any) -> Served:
    """Build a request of 10 prompt tokens with these token times; by default it ends with the last one."""
    sample = Sample(
        sent=sent,
        first=tokens[0] if tokens else None,
        end=rest.pop("end", tokens[-1] if tokens else None),
        gaps_ms=[1000 * (after - before) for before, after in itertools.pairwise(tokens)],
        tokens=len(tokens),
        **rest,
    )
    return Served(group, 10, len(tokens), sample)
