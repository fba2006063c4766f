"""Fixtures for HTTP tests: a tiny base model, PEFT adapters for it, and a fake engine."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import LlamaConfig

from adapters.identity import VersionKey
from app.database.migrate import upgrade
from app.database.session import Database
from app.database.urls import database_url
from app.domain.errors import EngineUnavailable
from app.domain.load_phases import LoadPhases
from app.engine.port import (
    Answer,
    EngineEvent,
    EngineRequest,
    Listener,
    Outcome,
    SmokeResult,
    TokenUsage,
)
from app.engine.status import EngineState, EngineStatus, StatusReport
from app.services.access.caller_cache import CallerCache
from app.services.access.key_format import KeyHasher
from app.services.access.keys import KeyService
from app.services.access.peppers import load_peppers
from app.settings import Settings
from tests.support.migrated import create_registry
from tests.support.peft_adapters import TINY_LLAMA, make_adapter

MAX_RANK = 16

#: Report of a stopped engine.
EMPTY = StatusReport(
    EngineStatus(
        state=EngineState.STOPPED,
        slots=4,
        slots_used=0,
        window=64,
        pinned=frozenset(),
        running=0,
        waiting=0,
        restarts=0,
        hangs=0,
        host_bytes=2**30,
        host_used_bytes=0,
        disk_bytes=2**34,
        disk_used_bytes=0,
        tiers=(),
    ),
    versions=(),
    tenants=(),
)


class Call:
    """Call of a fake engine, with the outcome that the engine's tables have for its request."""

    def __init__(self, engine: "NoEngine", request: EngineRequest) -> None:
        self.request = request
        self._engine = engine

    @property
    def outcome(self) -> Outcome:
        engine, request_id = self._engine, self.request.request_id
        return Outcome(engine.usages.get(request_id), engine.loads.get(request_id), request_id not in engine.not_finite)

    async def answer(self) -> Answer:
        return await self._engine.answer(self.request)


class NoEngine:
    """Fake engine that refuses every inference request and records the other calls.

    Attributes:
        smoke_result: result of every smoke check, or the error that it raises.
        may_smoke: event that lets a running smoke check finish.
        smoked, preloaded, unloaded: version ids, in order.
        loaded: ids of the versions that it reports as loaded.
        not_finite: ids of the requests that it reports as not finite.
        shown: its report, without the versions that were pinned here.
        loads: request id -> phases of the load that the request waited for.
        usages: request id -> token usage of the request.
        prefetched: version ids, in order.
    """

    def __init__(self) -> None:
        self.unloaded: list[int] = []
        self.smoke_result: SmokeResult | Exception = SmokeResult(finite=True, has_effect=True)
        self.may_smoke = threading.Event()
        self.may_smoke.set()
        self.smoked: list[int] = []
        self.preloaded: list[int] = []
        self.loaded: set[int] = set()
        self.not_finite: set[str] = set()
        self.listeners: list[Listener] = []
        self._pinned: set[int] = set()
        self.shown = EMPTY
        self.loads: dict[str, LoadPhases] = {}
        self.usages: dict[str, TokenUsage] = {}
        self.prefetched: list[int] = []
        self.works = True
        self.calls: list[str] = []

    @property
    def state(self) -> EngineState:
        return self.shown.status.state

    @state.setter
    def state(self, state: EngineState) -> None:
        self.shown = replace(self.shown, status=replace(self.shown.status, state=state))

    def status(self) -> EngineStatus:
        return self.report().status

    def report(self) -> StatusReport:
        status = self.shown.status
        return replace(self.shown, status=replace(status, pinned=status.pinned | self.pinned))

    def begin(self, request: EngineRequest) -> Call:
        return Call(self, request)

    def watch_waits(self, _listener: Callable[[float], None]) -> None:
        """Ignore the listener: no request ever waits in this engine."""

    def prefetch(self, key: VersionKey) -> None:
        self.prefetched.append(key.version_id)

    async def start(self) -> None:
        self.calls.append("start")
        await self.check()

    def leave(self) -> None:
        self.calls.append("leave")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def answer(self, request: EngineRequest) -> Answer:
        """Answer one call."""
        raise EngineUnavailable("there is no engine here", retry_after=7)

    async def smoke(self, key: VersionKey) -> SmokeResult:
        self.smoked.append(key.version_id)
        # Wait in a worker thread: the test sets the event from another thread than the server's.
        await asyncio.to_thread(self.may_smoke.wait, 30)
        if isinstance(self.smoke_result, Exception):
            raise self.smoke_result
        self._load(key.version_id)
        return self.smoke_result

    async def preload(self, key: VersionKey) -> None:
        self.preloaded.append(key.version_id)
        self._load(key.version_id)

    async def pin(self, key: VersionKey) -> None:
        self._load(key.version_id)
        self._pinned.add(key.version_id)

    async def unpin(self, version_id: int) -> None:
        self._pinned.discard(version_id)

    @property
    def pinned(self) -> frozenset[int]:
        return frozenset(self._pinned)

    async def holds(self, version_id: int) -> bool:
        return version_id in self.loaded

    def subscribe(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def tell(self, event: EngineEvent) -> None:
        """Send an event to every listener."""
        for listener in self.listeners:
            listener(event)

    async def unload(self, version_id: int) -> None:
        self.unloaded.append(version_id)
        self._pinned.discard(version_id)
        if version_id in self.loaded:
            self.loaded.remove(version_id)
            self.tell(EngineEvent("unload", version_id))

    def _load(self, version_id: int) -> None:
        if version_id not in self.loaded:
            self.loaded.add(version_id)
            self.tell(EngineEvent("load", version_id, 0.0))

    async def check(self) -> None:
        if not self.works:
            raise EngineUnavailable("the engine is starting")


@dataclass(frozen=True)
class PeftFiles:
    """The two files that PEFT saves for an adapter."""

    config: bytes
    weights: bytes


def save_base(folder: Path) -> Path:
    """Save configuration and chat template of a tiny Llama without weights and return its folder."""
    LlamaConfig(**TINY_LLAMA, architectures=["LlamaForCausalLM"]).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    return folder


def peft_files(folder: Path, *, seed: int) -> PeftFiles:
    """Make an adapter of rank 4 for the tiny base. Each seed gives other weights."""
    make_adapter(folder, seed=seed, target_modules=["q_proj", "v_proj"])
    return PeftFiles((folder / "adapter_config.json").read_bytes(), (folder / "adapter_model.safetensors").read_bytes())


async def set_up(settings: Settings) -> str:
    """Create the registry, or migrate it to the newest schema, and return a new platform key."""
    url = database_url(settings)
    if settings.database_url is None and not (path := settings.home / "tenora.db").exists():
        create_registry(path)
    else:
        upgrade(url)
    database = Database(url)
    try:
        service = KeyService(database, KeyHasher(load_peppers(settings)), CallerCache())
        return (await service.create(None, name="test", actor="cli")).text
    finally:
        await database.close()
