"""Workload ``upload``: what publishing a large adapter over HTTP costs in time and in the server's memory.

The server runs in a process of its own with the application's whole HTTP side, its validator, a local store and
SQLite, on a temporary HOME; only the engine is left out, as it takes no part. Each round publishes new bytes and
then lets ``sha256sum`` read the same file, which is in the page cache for both.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import numpy as np
import uvicorn
from safetensors.numpy import save_file

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.geometry import ATTENTION_MODULES, BaseGeometry, read_geometry
from app.database.migrate import upgrade
from app.database.session import Database
from app.database.urls import database_url
from app.engine.base import Answer, EngineRequest, EngineState, EngineStats
from app.errors import EngineUnavailable
from app.main import create_app
from app.secrets import load_pepper
from app.services.caller_cache import CallerCache
from app.services.key_format import KeyHasher
from app.services.keys import KeyService
from app.settings import EngineSettings, Settings

#: Llama 3 8B, the base that the adapter fits; its weights are not needed.
_BASE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "dtype": "bfloat16",
}
_MAX_RANK = 128
_START_S = 180
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Round:
    """One publication: seconds, the server's CPU seconds (its validator's too), and its resident bytes before it and
    at their peak.
    """

    upload_s: float
    sha256sum_s: float
    server_cpu_s: float
    before_bytes: int
    peak_bytes: int


class _NoEngine:
    """The engine's port in a server that only takes uploads: it refuses every request."""

    state = EngineState.STOPPED
    special_token_ids: frozenset[int] = frozenset()

    def stats(self) -> EngineStats:
        return EngineStats(running=0, waiting=0, resident=0, restarts=0)

    async def start(self) -> None:
        """There is nothing to start."""

    async def stop(self) -> None:
        """There is nothing to stop."""

    async def answer(self, _request: EngineRequest) -> Answer:
        raise EngineUnavailable("this server measures uploads only")

    async def token_texts(self, _token_ids: Sequence[int]) -> list[str]:
        raise EngineUnavailable("this server measures uploads only")

    async def unload(self, _version_id: int) -> None:
        """There is nothing to unload."""

    async def check(self) -> None:
        raise EngineUnavailable("this server measures uploads only")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print JSON: every round, and the medians."""
    parser = argparse.ArgumentParser(prog="tenora bench upload", description=__doc__)
    parser.add_argument("--bytes", type=int, default=2**30, help="size of the adapter, from 11 MB to 1.3 GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--home", type=Path, help="where the temporary HOME is made (default: the system's)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tenora-upload-", dir=options.home) as folder:
        rounds = run(Path(folder), size=options.bytes, rounds=options.rounds)
        size = (Path(folder) / "adapter" / WEIGHTS_NAME).stat().st_size
    sys.stdout.write(json.dumps(summary(rounds, size), indent=2) + "\n")


def run(folder: Path, *, size: int, rounds: int) -> list[Round]:
    """Publish an adapter of about ``size`` bytes to a server below ``folder``, ``rounds`` times."""
    base, adapter = folder / "llama-3-8b", folder / "adapter"
    base.mkdir()
    adapter.mkdir()
    (base / "config.json").write_text(json.dumps(_BASE))
    save_adapter(adapter, read_geometry(_BASE), size)
    settings = Settings(home=folder / "home", base_model=str(base), engine=EngineSettings(max_lora_rank=_MAX_RANK))
    key = asyncio.run(_set_up(settings))
    with _serving(settings) as (url, pid), httpx.Client(base_url=url, timeout=_START_S, trust_env=False) as client:
        client.headers["authorization"] = f"Bearer {key}"
        client.post("/admin/tenants", json={"slug": "bench"}).raise_for_status()
        return [_measure(client, pid, adapter, number) for number in range(rounds)]


def summary(rounds: Sequence[Round], size: int) -> dict[str, object]:
    """Medians over the rounds, and the rounds."""
    ratios = [done.sha256sum_s / done.upload_s for done in rounds]
    return {
        "adapter_bytes": size,
        "upload_s": round(statistics.median(done.upload_s for done in rounds), 3),
        "sha256sum_s": round(statistics.median(done.sha256sum_s for done in rounds), 3),
        "server_cpu_s": round(statistics.median(done.server_cpu_s for done in rounds), 3),
        "speed_relative_to_sha256sum": round(statistics.median(ratios), 3),
        "memory_growth_mib": round(max(done.peak_bytes - done.before_bytes for done in rounds) / _MIB, 1),
        "rounds": [asdict(done) for done in rounds],
    }


def save_adapter(folder: Path, geometry: BaseGeometry, size: int) -> None:
    """Write a valid float32 adapter for every linear layer, of the rank that comes nearest to ``size`` bytes."""
    per_rank = 4 * geometry.layers * sum(sum(dims) for dims in geometry.dims.values())
    rank = min(max(round(size / per_rank), 1), _MAX_RANK)
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


async def _set_up(settings: Settings) -> str:
    url = database_url(settings)
    upgrade(url)
    database = Database(url)
    try:
        keys = KeyService(database, KeyHasher(load_pepper(settings)), CallerCache())
        return (await keys.create(None, name="bench", actor="cli")).text
    finally:
        await database.close()


@contextmanager
def _serving(settings: Settings) -> Iterator[tuple[str, int]]:
    """A server in a process of its own: its URL and process id."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        server = multiprocessing.get_context("spawn").Process(target=_serve, args=(settings, sock), daemon=True)
        server.start()
    try:
        # The socket listens already, so this waits until the server takes its first connection.
        httpx.get(f"{url}/health/live", timeout=_START_S, trust_env=False).raise_for_status()
        yield url, int(server.pid or 0)
    finally:
        server.terminate()
        server.join()


def _serve(settings: Settings, sock: socket.socket) -> None:
    app = create_app(settings, engine=_NoEngine())
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[sock])


def _measure(client: httpx.Client, pid: int, adapter: Path, number: int) -> Round:
    _make_new(adapter / WEIGHTS_NAME, number)
    # Resets the peak that the kernel keeps: proc(5), clear_refs.
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    before, cpu_s = _memory(pid, "VmRSS"), _cpu_s(pid)
    started = time.perf_counter()
    with (adapter / CONFIG_NAME).open("rb") as config, (adapter / WEIGHTS_NAME).open("rb") as weights:
        files = {CONFIG_NAME: config, WEIGHTS_NAME: weights}
        answer = client.post("/admin/tenants/bench/adapters/large/versions", files=files)
    upload_s = time.perf_counter() - started
    if answer.status_code != httpx.codes.CREATED:
        raise RuntimeError(f"the server answered {answer.status_code}: {answer.text[:500]}")
    peak, cpu_s = _memory(pid, "VmHWM"), _cpu_s(pid) - cpu_s
    started = time.perf_counter()
    sha256sum = shutil.which("sha256sum") or "sha256sum"
    subprocess.run([sha256sum, str(adapter / WEIGHTS_NAME)], check=True, stdout=subprocess.DEVNULL)
    return Round(upload_s, time.perf_counter() - started, cpu_s, before, peak)


def _make_new(weights: Path, number: int) -> None:
    """Change one value, so that the store has not seen these bytes."""
    with weights.open("r+b") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        file.seek(8 + header_bytes)
        file.write(struct.pack("<f", number))


def _memory(pid: int, field: str) -> int:
    """A line of ``/proc/<pid>/status``, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _cpu_s(pid: int) -> float:
    """User and system time of a process and of its children that ended: fields 14 to 17 of ``/proc/<pid>/stat``."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
