"""Killed servers: a single one, and one of two together with its leases."""

import asyncio
import base64
import hashlib
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.faults.load import CUT, OK, Load
from tests.support.faults.report import Measured
from tests.support.faults.site import Host, Site, variants
from tests.support.server import until

LONG = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "temperature": 1, "stream": True}
#: Part of a canary's traffic, and the duration of the step in seconds.
STEP = {"weight": 50, "seconds": 5}


async def test_api_killed(site: Site, chance: random.Random, seed: int) -> None:
    async with Load(site.host.url, site.units) as load:
        await asyncio.sleep(chance.uniform(0, 2))
        assert await asyncio.to_thread(site.make_key) == OK
        began = time.monotonic()
        engine = site.host.server.engine_processes()
        site.host.server.process.kill()
        await asyncio.to_thread(site.host.stop)
        _, alive = await asyncio.to_thread(psutil.wait_procs, engine, 60)
        assert not alive, "an engine outlived its server"
        await asyncio.to_thread(site.host.start)
        recovery_s = await load.settled(began)
        results = load.seen(began)
    assert set(results) <= {OK, CUT}, results
    assert results[CUT] > 0
    site.check_promises(load.promises)
    Measured("API killed", results, recovery_s).write(seed)


@pytest.fixture(scope="module")
def other(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Second server on the same registry and store, started for its first test."""
    other = Host(tmp_path_factory.mktemp("faults") / "two", site.host.base, site.host.admin_key, site.host.settings)
    other.start()
    yield other
    other.stop()


@dataclass
class Held:
    """State that a server holds for a tenant: a stream and its limit, an upload, a canary.

    The tenant may have one request at a time.
    """

    site: Site
    slug: str
    key: str
    folder: Path
    upload: str = ""

    @property
    def path(self) -> str:
        return f"/admin/tenants/{self.slug}/adapters/quotes"

    def client(self, host: Host) -> httpx.Client:
        return httpx.Client(base_url=host.url, headers={"authorization": f"Bearer {self.key}"}, timeout=120)

    def files(self) -> dict[str, bytes]:
        names = ("adapter_config.json", "adapter_model.safetensors")
        return {name: (self.folder / name).read_bytes() for name in names}

    def begin_upload(self, host: Host) -> None:
        """Send one of the two files."""
        with self.client(host) as client:
            sizes = {
                name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                for name, data in self.files().items()
            }
            begun = client.post("/v1/adapters/uploaded/uploads", json={"files": sizes})
            assert begun.status_code == 201, begun.text
            self.upload = begun.headers["location"]
            self._send(client, "adapter_config.json")

    def finish_upload(self, host: Host) -> None:
        """Send the other file and finish the upload."""
        with self.client(host) as client:
            shown = client.get(self.upload).json()["files"]
            assert [shown[name]["received"] for name in self.files()] == [[1], []]
            self._send(client, "adapter_model.safetensors")
            assert client.post(f"{self.upload}/finish").status_code == 201

    def _send(self, client: httpx.Client, name: str) -> None:
        data = self.files()[name]
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        headers = {"content-digest": f"sha-256=:{digest}:"}
        sent = client.put(f"{self.upload}/files/{name}/parts/1", content=data, headers=headers)
        assert sent.status_code == 204, sent.text

    def start_canary(self, host: Host) -> None:
        with host.server.client(host.admin_key) as admin:
            policy = {"steps": [STEP], "min_requests": 1, "max_error_rate": 1.0, "max_empty_rate": 1.0}
            body: dict[str, Any] = {"version": 2, "policy": policy}
            answer = admin.put(f"{self.path}/aliases/default/canary", json=body)
            assert answer.status_code == 201, answer.text

    def canary(self, host: Host) -> str:
        with host.server.client(host.admin_key) as admin:
            return str(admin.get(f"{self.path}/aliases/default").json()["canary"]["state"])

    def ask(self, host: Host) -> int:
        with self.client(host) as client:
            return client.post(
                "/v1/completions", json=LONG | {"model": "quotes", "stream": False, "max_tokens": 2}
            ).status_code

    def stream(self, host: Host, begun: threading.Event) -> str:
        """Hold a stream until it ends; return its result."""
        body = LONG | {"model": "quotes", "n": 8}
        with self.client(host) as client, client.stream("POST", "/v1/completions", json=body) as answer:
            last = ""
            try:
                for line in answer.iter_lines():
                    begun.set()
                    last = line or last
            except httpx.TransportError:
                return CUT
            return last


@pytest.fixture
def held(site: Site, tmp_path: Path, chance: random.Random) -> Held:
    """New tenant with two versions, the first of them in service."""
    server, slug = site.host.server, f"held-{chance.randrange(10**9)}"
    folders = list(variants(tmp_path, next(iter(site.adapters.values())), 3, scale=3.0))
    held = Held(site, slug, server.tenant(slug), folders[2])
    with server.client(site.host.admin_key) as admin:
        for folder in folders[:2]:
            assert server.publish(slug, "quotes", folder).status_code == 201
        assert admin.put(f"{held.path}/aliases/default", json={"version": 1}).is_success
        limits = {"limits": {"concurrent_requests": 1}}
        assert admin.patch(f"/admin/tenants/{slug}", json=limits).status_code == 200
    return held


@pytest.mark.long
async def test_one_of_two_dies(site: Site, other: Host, held: Held, chance: random.Random, seed: int) -> None:
    """Simulate the loss of a machine: server and engine die together, with their state."""
    held.begin_upload(other)
    held.start_canary(other)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        async with Load(site.host.url, site.units, clients=4) as load, Load(other.url, site.units, clients=2) as lost:
            begun = threading.Event()
            stream = pool.submit(held.stream, other, begun)
            assert await asyncio.to_thread(begun.wait, 60)
            assert await asyncio.to_thread(held.ask, site.host) == 429
            await asyncio.sleep(chance.uniform(0, 1))
            began = time.monotonic()
            dead = other.server.engine_processes()
            for process in (other.server.process, *dead):
                process.kill()
            assert await asyncio.wrap_future(stream) == CUT
            await asyncio.to_thread(held.finish_upload, site.host)
            # The reservation is a lease, so another server releases it.
            await asyncio.to_thread(until, lambda: held.ask(site.host) == 200, 120)
            await asyncio.to_thread(
                until, lambda: held.ask(site.host) == 200 and held.canary(site.host) == "promoted", 120
            )
            results = load.seen(began)
            await asyncio.to_thread(other.stop)
            await asyncio.to_thread(other.start)
            recovery_s = await lost.settled(began)
            results_of_lost = lost.seen(began)
    assert set(results) == {OK}, "who asks the other server sees nothing of it"
    assert set(results_of_lost) <= {OK, CUT}, results_of_lost
    assert results_of_lost[CUT] > 0
    site.check_promises(load.promises + lost.promises)
    Measured("one of two servers dies", results + results_of_lost, recovery_s).write(seed)
