"""Connection limit: the last connections are reserved for health, metrics and administration."""

import asyncio
import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from app.cli.connections import Bounds, bounded
from app.main import create_app
from app.settings import Settings
from tests.support.live_server import live_server
from tests.support.serving import MAX_RANK, NoEngine, set_up
from tests.support.site import Site, make_unit


@pytest.fixture
def crowded(base: Path, tmp_path: Path) -> Iterator[Site]:
    """A server with a limit of 16 connections, 14 of which hold an event feed."""
    settings = Settings(
        home=tmp_path, base_model=str(base), engine={"max_lora_rank": MAX_RANK}, limits={"connections": 16}
    )
    admin_key = asyncio.run(set_up(settings))
    engine = NoEngine()
    with ExitStack() as stack:
        url = stack.enter_context(live_server(create_app(settings, engine=engine), http=bounded(settings.limits)))
        site = Site(url, admin_key, settings, engine)
        with site.client(admin_key) as admin:
            keys = [make_unit(admin).key for _ in range(Bounds.of(settings.limits).shared)]
        for key in keys:
            client = stack.enter_context(site.client(key))
            feed = stack.enter_context(client.stream("GET", "/v1/events"))
            assert feed.status_code == 200
        yield site


def test_the_last_places_are_for_who_runs_the_server(crowded: Site) -> None:
    with crowded.client(crowded.admin_key) as admin, crowded.client(None) as other:
        refused = other.post("/v1/completions", json={"prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
        assert refused.headers["connection"] == "close"
        assert int(refused.headers["retry-after"]) > 0
        assert len(refused.headers["x-request-id"]) == 32
        # LoRAX clients get LoRAX's error envelope.
        assert other.post("/generate", json={"inputs": "x"}).json()["error_type"] == "overloaded"
        assert admin.get("/admin/tenants").status_code == 200
        assert httpx.get(f"{crowded.url}/health/live").status_code == 200
        assert admin.get("/metrics").status_code == 200


def test_an_idle_connection_gives_its_place_to_the_next(crowded: Site) -> None:
    port = int(crowded.url.rpartition(":")[2])
    before: socket.socket | None = None
    for _ in range(4):
        client = socket.create_connection(("127.0.0.1", port), timeout=30)
        client.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        response = http.client.HTTPResponse(client)
        response.begin()
        assert response.status == 200
        assert response.read()
        if before is not None:
            assert before.recv(1) == b""
            before.close()
        before = client
    client.close()
