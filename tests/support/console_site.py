"""Site with a fake engine and all that the console shows: adapters, a canary, a batch, usage, deletions."""

import asyncio
import json
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Page

from app.engine.port import Answer, EngineRequest, SmokeResult, TokenUsage
from app.main import create_app
from app.settings import Settings
from tests.support.batches import AnsweringEngine
from tests.support.chat_answers import EngineStream, answer, text_chunks
from tests.support.console_session import COOKIE, FROM_CONSOLE
from tests.support.live_server import live_server
from tests.support.serving import MAX_RANK, PeftFiles, peft_files, save_base, set_up

TENANT, OTHER = "pricing", "supply-chain"
SCOPES = ("inference", "batch", "adapters:read", "adapters:write", "usage:read", "keys:write")


class ChattingEngine(AnsweringEngine):
    """Engine that answers chats with prepared texts, and completions with the version and the prompt.

    Attributes:
        texts: pieces of the answer to a chat.
        by_model: pieces of the answers of certain models.
        may_chat: answers to chats wait for this event.
    """

    #: Result of the smoke check of an adapter that changes nothing.
    without_effect = SmokeResult(finite=True, has_effect=False)

    def __init__(self) -> None:
        super().__init__()
        self.texts = ("Sugar ", "is ", "sweet.")
        self.by_model: dict[str, tuple[str, ...]] = {}
        self.may_chat = threading.Event()
        self.may_chat.set()

    async def answer(self, request: EngineRequest) -> Answer:
        if "messages" not in request.body:
            return await super().answer(request)
        while not self.may_chat.is_set():
            await asyncio.sleep(0.01)
        texts = self.by_model.get(request.model, self.texts)
        self.usages[request.request_id] = TokenUsage(12, 0, len(texts), ttft_s=0.1)
        if request.body.get("stream"):
            return EngineStream(text_chunks(*texts))
        return answer("".join(texts))


@dataclass(frozen=True)
class ConsoleSite:
    """Running server with its keys.

    Attributes:
        files: adapter files that are not published.
        bare_key: key of the tenant that may only infer.
        sessions: key -> token of its session, see :meth:`session`.
    """

    url: str
    admin_key: str
    key: str
    bare_key: str
    engine: ChattingEngine
    files: PeftFiles
    sessions: dict[str, str] = field(default_factory=dict)

    def client(self, key: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {key}"}, timeout=60, trust_env=False)

    def session(self, key: str) -> str:
        """Return the token of a session with this key. Tests of the same key share it."""
        if key not in self.sessions:
            with self.client(key) as client:
                answer = client.post("/v1/session", headers=FROM_CONSOLE)
                assert answer.status_code == 201, answer.text
                self.sessions[key] = answer.cookies[COOKIE]
        return self.sessions[key]


async def open_page(page: Page, site: ConsoleSite, key: str, path: str | None = "/console") -> None:
    """Give a page the session of a key without the sign-in page, and go to a path.

    Args:
        path: None to go nowhere.
    """
    cookie = site.session(key)
    await page.context.add_cookies(
        [{"name": COOKIE, "value": cookie, "url": site.url, "httpOnly": True, "sameSite": "Strict"}]
    )
    if path is not None:
        await page.goto(path)


@contextmanager
def console_site(folder: Path) -> Iterator[ConsoleSite]:
    base = save_base(folder / "base")
    settings = Settings(home=folder / "home", base_model=str(base), engine={"max_lora_rank": MAX_RANK, "max_loras": 4})
    admin_key = asyncio.run(set_up(settings))
    engine = ChattingEngine()
    files = [peft_files(folder / str(seed), seed=seed) for seed in range(1, 7)]
    with live_server(create_app(settings, engine=engine)) as url:
        site = ConsoleSite(url, admin_key, *_keys(url, admin_key), engine, files[-1])
        _fill(site, files)
        yield site


def _keys(url: str, admin_key: str) -> tuple[str, str]:
    headers = {"authorization": f"Bearer {admin_key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as admin:
        for tenant in (TENANT, OTHER):
            _ok(admin.post("/admin/tenants", json={"slug": tenant}))
        full = _ok(admin.post(f"/admin/tenants/{TENANT}/keys", json={"name": "console", "scopes": list(SCOPES)}))
        bare = _ok(admin.post(f"/admin/tenants/{TENANT}/keys", json={"name": "bare", "scopes": ["inference"]}))
    return full["key"], bare["key"]


def _fill(site: ConsoleSite, files: list[PeftFiles]) -> None:
    with site.client(site.admin_key) as admin:
        for adapter, seeds in {"quotes": (0, 1), "labels": (2,)}.items():
            for seed in seeds:
                alias = "default" if seed != 1 else None
                options = {"alias": alias, "labels": {"team": "pricing"}, "card": "Trained in November."}
                upload(admin, TENANT, adapter, files[seed], options)
        upload(admin, OTHER, "stock", files[3], {})
        upload(admin, TENANT, "old", files[4], {})
        _ok(admin.put(f"/admin/tenants/{OTHER}/adapters/stock/shares/{TENANT}"))
        _ok(admin.put("/admin/prices/default", json={"prompt": "0.15", "output": "0.60"}))
        _ok(admin.delete(f"/admin/tenants/{TENANT}/adapters/old", params={"force": "true"}))
        limits = {"requests_per_minute": 10_000}
        _ok(admin.patch(f"/admin/tenants/{TENANT}", json={"limits": limits, "quota": {"adapters": 1000}}))
        canary = {"version": 2}
        _ok(admin.put(f"/admin/tenants/{TENANT}/adapters/quotes/aliases/default/canary", json=canary))
    with site.client(site.key) as tenant:
        for model in ("labels", "base"):
            _ok(tenant.post("/v1/completions", json={"model": model, "prompt": "How much?", "max_tokens": 4}))
        make_batch(tenant)


def upload(
    client: httpx.Client, tenant: str, adapter: str, files: PeftFiles, options: Mapping[str, Any]
) -> dict[str, Any]:
    parts = {
        "adapter_config.json": ("adapter_config.json", files.config),
        "adapter_model.safetensors": ("adapter_model.safetensors", files.weights),
    }
    path = f"/admin/tenants/{tenant}/adapters/{adapter}/versions"
    return _ok(client.post(path, files=parts, data={"options": json.dumps(options)}))


def folder_of(folder: Path, files: PeftFiles) -> Path:
    """Write an adapter's files into a new folder."""
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(files.config)
    (folder / "adapter_model.safetensors").write_bytes(files.weights)
    return folder


def make_batch(client: httpx.Client, metadata: Mapping[str, str] | None = None) -> dict[str, Any]:
    body = {"model": "labels", "prompt": "How much?", "max_tokens": 4}
    line = {"custom_id": uuid.uuid4().hex, "method": "POST", "url": "/v1/completions", "body": body}
    file = _ok(client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", json.dumps(line))}))
    batch = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return _ok(client.post("/v1/batches", json={**batch, "metadata": metadata}))


def _ok(response: httpx.Response) -> dict[str, Any]:
    assert response.is_success, response.text
    return dict(response.json()) if response.content else {}
