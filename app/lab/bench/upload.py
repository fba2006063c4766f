"""Workload ``upload``: time and server memory of publishing a large adapter over HTTP.

The server runs in a separate process with the application's full HTTP side, its validator, a local store and SQLite,
on a temporary HOME. Only the engine is left out, since it takes no part. Each round publishes new bytes and then runs
``sha256sum`` on the same file, which is in the page cache for both.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from app.lab.bench.engineless import MAX_RANK, START_S, prepare, serving, set_up
from app.settings import EngineSettings, Settings

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Round:
    """One upload: its seconds, the server's CPU seconds including its validator, and the server's resident bytes before
    the upload and at their peak.
    """

    upload_s: float
    sha256sum_s: float
    server_cpu_s: float
    before_bytes: int
    peak_bytes: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print every round and the medians as JSON."""
    parser = argparse.ArgumentParser(prog="tenora server bench upload", description=__doc__)
    parser.add_argument("--bytes", type=int, default=2**30, help="Size of the adapter in bytes, from 11 MB to 1.3 GB")
    parser.add_argument("--rounds", type=int, default=3, help="Number of rounds")
    parser.add_argument("--home", type=Path, help="Parent folder of the temporary HOME; default: the system's")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tenora-upload-", dir=options.home) as folder:
        rounds = run(Path(folder), size=options.bytes, rounds=options.rounds)
        size = (Path(folder) / "adapter" / WEIGHTS_NAME).stat().st_size
    sys.stdout.write(json.dumps(summary(rounds, size), indent=2) + "\n")


def run(folder: Path, *, size: int, rounds: int) -> list[Round]:
    """Publish an adapter of about ``size`` bytes to a server below ``folder``, ``rounds`` times."""
    base, adapter = prepare(folder, size)
    settings = Settings(home=folder / "home", base_model=str(base), engine=EngineSettings(max_lora_rank=MAX_RANK))
    key = asyncio.run(set_up(settings))
    with serving(settings) as (url, pid), httpx.Client(base_url=url, timeout=START_S, trust_env=False) as client:
        client.headers["authorization"] = f"Bearer {key}"
        client.post("/admin/tenants", json={"slug": "bench"}).raise_for_status()
        return [_measure(client, pid, adapter, number) for number in range(rounds)]


def summary(rounds: Sequence[Round], size: int) -> dict[str, object]:
    """Medians over the rounds, with the rounds."""
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


def _measure(client: httpx.Client, pid: int, adapter: Path, number: int) -> Round:
    _make_new(adapter / WEIGHTS_NAME, number)
    # Reset the kernel's peak of resident memory: proc(5), clear_refs.
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    before, cpu_s = _memory(pid, "VmRSS"), _cpu_s(pid)
    started = time.perf_counter()
    with (adapter / CONFIG_NAME).open("rb") as config, (adapter / WEIGHTS_NAME).open("rb") as weights:
        files = {CONFIG_NAME: config, WEIGHTS_NAME: weights}
        answer = client.post("/admin/tenants/bench/adapters/large/versions", files=files)
    upload_s = time.perf_counter() - started
    if answer.status_code != httpx.codes.CREATED:
        raise RuntimeError(f"The server answered {answer.status_code}: {answer.text[:500]}")
    peak, cpu_s = _memory(pid, "VmHWM"), _cpu_s(pid) - cpu_s
    started = time.perf_counter()
    sha256sum = shutil.which("sha256sum") or "sha256sum"
    subprocess.run([sha256sum, str(adapter / WEIGHTS_NAME)], check=True, stdout=subprocess.DEVNULL)
    return Round(upload_s, time.perf_counter() - started, cpu_s, before, peak)


def _make_new(weights: Path, number: int) -> None:
    """Change one value, so that the bytes are new to the store."""
    with weights.open("r+b") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        file.seek(8 + header_bytes)
        file.write(struct.pack("<f", number))


def _memory(pid: int, field: str) -> int:
    """Value of a line of ``/proc/<pid>/status``, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _cpu_s(pid: int) -> float:
    """User and system CPU seconds of a process and its ended children: fields 14 to 17 of ``/proc/<pid>/stat``."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
