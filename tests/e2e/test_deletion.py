"""Verified deletion on the real engine: a running request finishes first, and then the version is gone everywhere."""

import asyncio
import hashlib
import json
from pathlib import Path

import httpx

from app.demo.train import Demo
from tests.support.distinct_adapter import unlike_any_other
from tests.support.server import Server, until

RESIDENT, RUNNING = "tenora_engine_adapters_resident", "tenora_engine_requests_running"
TENANT = "deleting"
ADAPTER = f"/admin/tenants/{TENANT}/adapters/quotes"
TOKENS = 700


def on_disk(server: Server) -> set[str]:
    return {path.name for path in (server.home / "cache").rglob("*") if path.is_dir() and path.name != "tmp"}


def blobs(server: Server) -> set[str]:
    return {path.name for path in (server.home / "blobs" / "sha256").glob("*/*")}


async def read_whole(client: httpx.AsyncClient, begun: asyncio.Event) -> list[str]:
    """Read a long stream to its end, and signal its first event."""
    body = {"model": "quotes", "prompt": "x", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    events = []
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            events += [line] if line else []
            begun.set()
    return events


async def test_the_reader_finishes_and_then_nothing_is_left(
    server: Server, keys: dict[str, str], trained_demo: Demo, tmp_path: Path
) -> None:
    key = server.tenant(TENANT)
    directory = unlike_any_other(trained_demo.adapters["pricing"], tmp_path / "adapter")
    before = blobs(server), on_disk(server)
    published = server.publish(TENANT, "quotes", directory)
    assert published.status_code == 201, published.text
    digest = published.json()["digest"].removeprefix("sha256:")
    own = {
        hashlib.sha256((directory / name).read_bytes()).hexdigest()
        for name in ("adapter_config.json", "adapter_model.safetensors")
    }
    assert blobs(server) - before[0] == own
    begun = asyncio.Event()
    headers = {"authorization": f"Bearer {key}"}
    with server.client(server.admin_key) as admin:
        async with httpx.AsyncClient(base_url=server.url, timeout=120, headers=headers) as client:
            reading = asyncio.create_task(read_whole(client, begun))
            await begun.wait()
            resident = server.metric(RESIDENT)
            assert (await asyncio.to_thread(admin.delete, ADAPTER)).status_code == 409
            answer = await asyncio.to_thread(admin.delete, ADAPTER, params={"force": "true"})
            assert answer.status_code == 202, answer.text
            location = answer.headers["location"]
            assert not reading.done()
            assert (await client.post("/v1/completions", json={"model": "quotes", "prompt": "x"})).status_code == 404
            # While the request runs, the engine keeps the version, the disk its files and the store its bytes.
            report = (await asyncio.to_thread(admin.get, location)).json()
            running = not reading.done()
            if running:
                assert (report["state"], report["nodes"][0]["engine_gone_at"]) == ("running", None)
                assert digest in on_disk(server)
                assert own <= blobs(server)
            events = await reading
            assert running, "the stream was too short to prove anything"
        assert events[-1] == "data: [DONE]"
        assert not any("error" in json.loads(event.removeprefix("data: ")) for event in events[:-1])
        assert len(events) > TOKENS / 2
        await asyncio.to_thread(until, lambda: admin.get(location).json()["state"] == "finished", 30)
        report = admin.get(location).json()
        assert report["nodes"][0]["engine_gone_at"]
        assert report["nodes"][0]["disk_gone_at"]
        assert {blob["digest"] for blob in report["blobs"] if blob["gone_at"]} == own
        # `engine_gone_at` comes from the engine's own list; the gauge agrees.
        assert server.metric(RESIDENT) == resident - 1
        assert digest not in on_disk(server)
        assert not own & blobs(server)
        assert admin.get(ADAPTER).status_code == 404
        assert admin.get(f"/admin/tenants/{TENANT}/adapters").json()["data"] == []
    with server.client(key) as client:
        assert "quotes" not in {model["id"] for model in client.get("/v1/models").json()["data"]}
        for model in ("quotes", "quotes@1", "quotes:default"):
            assert client.post("/v1/completions", json={"model": model, "prompt": "x"}).status_code == 404
    assert (blobs(server), on_disk(server) - before[1]) == (before[0], set())
