"""Server without an engine in a separate process, for workloads that only upload, and adapters for it.

The server has the application's full HTTP side, validator, stores and database. Every version passes its smoke check,
since there is no engine to check it on.
"""

import json
import multiprocessing
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import uvicorn
from safetensors.numpy import save_file

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.geometry import ATTENTION_MODULES, BaseGeometry, read_geometry
from adapters.identity import VersionKey
from app.database.migrate import upgrade
from app.database.session import Database
from app.database.urls import database_url
from app.domain.errors import EngineUnavailable
from app.engine.port import Answer, EngineRequest, Listener, Outcome, SmokeResult
from app.engine.status import EngineState, EngineStatus, StatusReport
from app.main import create_app
from app.services.access.caller_cache import CallerCache
from app.services.access.key_format import KeyHasher
from app.services.access.keys import KeyService
from app.services.access.peppers import load_peppers
from app.settings import Settings

#: Llama 3 8B, the base that the adapter fits. Its weights are not needed.
BASE_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "dtype": "bfloat16",
}
MAX_RANK = 128
START_S = 180


class RefusedCall:
    """Call of a request that no engine takes."""

    outcome = Outcome()

    def __init__(self, request: EngineRequest) -> None:
        self.request = request

    async def answer(self) -> Answer:
        raise EngineUnavailable("This server measures uploads only.")


class NoEngine:
    """Engine port for a server that only takes uploads. It refuses every request."""

    async def start(self) -> None:
        """Do nothing: there is no engine to start."""

    def leave(self) -> None:
        """Do nothing: there is no engine to restart."""

    async def stop(self) -> None:
        """Do nothing: there is no engine to stop."""

    def begin(self, request: EngineRequest) -> RefusedCall:
        return RefusedCall(request)

    async def smoke(self, _key: VersionKey) -> SmokeResult:
        return SmokeResult(finite=True, has_effect=True)

    def prefetch(self, _key: VersionKey) -> None:
        """Do nothing: no request needs the adapter."""

    async def preload(self, _key: VersionKey) -> None:
        """Do nothing: there is no slot to load into."""

    async def pin(self, _key: VersionKey) -> None:
        """Do nothing: there is no slot to pin."""

    async def unpin(self, _version_id: int) -> None:
        """Do nothing: no version is pinned."""

    async def unload(self, _version_id: int) -> None:
        """Do nothing: no version is loaded."""

    async def holds(self, _version_id: int) -> bool:
        return False

    def status(self) -> EngineStatus:
        return EngineStatus(
            EngineState.STOPPED,
            slots=0,
            slots_used=0,
            window=0,
            pinned=frozenset(),
            running=0,
            waiting=0,
            restarts=0,
            hangs=0,
            host_bytes=0,
            host_used_bytes=0,
            disk_bytes=0,
            disk_used_bytes=0,
            tiers=(),
        )

    def report(self) -> StatusReport:
        return StatusReport(self.status(), versions=(), tenants=())

    def subscribe(self, _listener: Listener) -> None:
        """Do nothing: no event will occur."""

    def watch_waits(self, _listener: Callable[[float], None]) -> None:
        """Do nothing: no request waits here."""

    async def check(self) -> None:
        raise EngineUnavailable("This server measures uploads only.")


def prepare(folder: Path, size: int) -> tuple[Path, Path]:
    """Create the configuration of a base and an adapter for it.

    Args:
        size: approximate size of the adapter in bytes.

    Returns:
        Folders of the base and of the adapter.
    """
    base, adapter = folder / "llama-3-8b", folder / "adapter"
    base.mkdir()
    adapter.mkdir()
    (base / "config.json").write_text(json.dumps(BASE_CONFIG))
    save_adapter(adapter, read_geometry(BASE_CONFIG), size)
    return base, adapter


def save_adapter(folder: Path, geometry: BaseGeometry, size: int) -> None:
    """Write a valid float32 adapter for every linear layer, with the rank closest to ``size`` bytes."""
    per_rank = 4 * geometry.layers * sum(sum(dims) for dims in geometry.dims.values())
    rank = min(max(round(size / per_rank), 1), MAX_RANK)
    random = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    for layer in range(geometry.layers):
        for module, (inputs, outputs) in geometry.dims.items():
            block = "self_attn" if module in ATTENTION_MODULES else "mlp"
            name = f"base_model.model.model.layers.{layer}.{block}.{module}"
            tensors[f"{name}.lora_A.weight"] = random.random((rank, inputs), np.float32)
            tensors[f"{name}.lora_B.weight"] = random.random((outputs, rank), np.float32)
    save_file(tensors, folder / WEIGHTS_NAME)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank}
    (folder / CONFIG_NAME).write_text(json.dumps(config | {"target_modules": list(geometry.dims)}))


async def set_up(settings: Settings) -> str:
    """Create the registry and return a platform key."""
    url = database_url(settings)
    upgrade(url)
    database = Database(url)
    try:
        keys = KeyService(database, KeyHasher(load_peppers(settings)), CallerCache())
        return (await keys.create(None, name="bench", actor="cli")).text
    finally:
        await database.close()


@contextmanager
def serving(settings: Settings) -> Iterator[tuple[str, int]]:
    """Run a server in a separate process and yield its URL and process id."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        server = multiprocessing.get_context("spawn").Process(target=_serve, args=(settings, sock), daemon=True)
        server.start()
    try:
        # The socket listens already, so this request waits until the server accepts its first connection.
        httpx.get(f"{url}/health/live", timeout=START_S, trust_env=False).raise_for_status()
        yield url, int(server.pid or 0)
    finally:
        server.terminate()
        server.join()


def _serve(settings: Settings, sock: socket.socket) -> None:
    app = create_app(settings, engine=NoEngine())
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[sock])
