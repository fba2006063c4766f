"""What tests of the HTTP side serve: a tiny base, adapters that PEFT made for it, and no engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import LlamaConfig

from app.database.migrate import upgrade
from app.database.session import Database
from app.database.urls import database_url
from app.engine.base import Answer, EngineRequest, EngineState, EngineStats
from app.errors import EngineUnavailable
from app.secrets import load_pepper
from app.services.caller_cache import CallerCache
from app.services.key_format import KeyHasher
from app.services.keys import KeyService
from app.settings import Settings
from tests.peft_adapters import TINY_LLAMA, make_adapter

MAX_RANK = 16


class NoEngine:
    """The engine's port where nothing infers: it refuses every request and notes what it is told to unload."""

    state = EngineState.STOPPED
    special_token_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.unloaded: list[int] = []
        self.works = True
        self.calls: list[str] = []

    def stats(self) -> EngineStats:
        return EngineStats(running=0, waiting=0, resident=0, restarts=0)

    async def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        raise EngineUnavailable("there is no engine here")

    async def start(self) -> None:
        self.calls.append("start")
        await self.check()

    async def stop(self) -> None:
        self.calls.append("stop")

    async def answer(self, request: EngineRequest) -> Answer:
        raise EngineUnavailable("there is no engine here", retry_after=7)

    async def unload(self, version_id: int) -> None:
        self.unloaded.append(version_id)

    async def check(self) -> None:
        if not self.works:
            raise EngineUnavailable("the engine is starting")


@dataclass(frozen=True)
class PeftFiles:
    """What PEFT saved."""

    config: bytes
    weights: bytes


def save_base(folder: Path) -> Path:
    """The configuration of a tiny Llama; its weights are not needed here."""
    LlamaConfig(**TINY_LLAMA, architectures=["LlamaForCausalLM"]).save_pretrained(folder)
    return folder


def peft_files(folder: Path, *, seed: int) -> PeftFiles:
    """An adapter for that base, of rank 4; another seed makes other weights."""
    make_adapter(folder, seed=seed, target_modules=["q_proj", "v_proj"])
    return PeftFiles((folder / "adapter_config.json").read_bytes(), (folder / "adapter_model.safetensors").read_bytes())


async def set_up(settings: Settings) -> str:
    """Bring the registry to the newest schema and return a new platform key."""
    url = database_url(settings)
    upgrade(url)
    database = Database(url)
    try:
        service = KeyService(database, KeyHasher(load_pepper(settings)), CallerCache())
        return (await service.create(None, name="test", actor="cli")).text
    finally:
        await database.close()
