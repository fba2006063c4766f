"""Live server with a fake engine: its keys, units and uploads."""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.main import create_app
from app.settings import Settings
from tests.support.live_server import live_server
from tests.support.serving import MAX_RANK, NoEngine, PeftFiles, set_up


@dataclass(frozen=True)
class Site:
    """A running server and its platform key."""

    url: str
    admin_key: str
    settings: Settings
    engine: NoEngine

    def client(self, key: str | None) -> httpx.Client:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)

    @property
    def spool(self) -> Path:
        return self.settings.home / "spool"

    @property
    def blobs(self) -> set[str]:
        return {path.name for path in (self.settings.home / "blobs" / "sha256").glob("*/*")}


@dataclass(frozen=True)
class Unit:
    """A tenant and one of its keys, which has all scopes that a tenant's key can have."""

    slug: str
    key: str


@contextmanager
def running_site(home: Path, base: Path, **settings: Any) -> Iterator[Site]:
    configured = Settings(
        home=home, base_model=str(base), engine={"max_lora_rank": MAX_RANK, "max_loras": 4}, **settings
    )
    admin_key = asyncio.run(set_up(configured))
    engine = NoEngine()
    with live_server(create_app(configured, engine=engine)) as url:
        yield Site(url, admin_key, configured, engine)


def make_unit(admin: httpx.Client) -> Unit:
    slug = f"unit-{uuid.uuid4().hex[:8]}"
    assert admin.post("/admin/tenants", json={"slug": slug}).status_code == 201
    scopes = ["inference", "batch", "adapters:read", "adapters:write", "usage:read", "keys:write"]
    answer = admin.post(f"/admin/tenants/{slug}/keys", json={"name": "test", "scopes": scopes})
    assert answer.status_code == 201, answer.text
    return Unit(slug, answer.json()["key"])


def parts(files: PeftFiles) -> dict[str, tuple[str, bytes]]:
    """Return the two parts of an upload in the form that httpx takes."""
    return {
        "adapter_config.json": ("adapter_config.json", files.config),
        "adapter_model.safetensors": ("adapter_model.safetensors", files.weights),
    }
