"""Part ``overhead``: throughput with LoRA off, on and unused, and with 1 to 64 adapters, of Tenora and vLLM in turn."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from app.lab.bench import models, report, rivals
from app.lab.bench.card.options import Options, Result
from app.lab.bench.open_loop import Plan, Request, drive
from app.lab.bench.pairs import Prompts
from app.lab.bench.servers import Server
from app.lab.bench.timeline import Script, require_answered

OFF, VLLM, TENORA = "vllm, LoRA off", "vllm", "tenora"
_RANK, _SEED = 16, 2027
#: Of each of three servers that share a card.
_GPU_MEMORY, _KV_CACHE_BYTES = 0.25, 8 * 2**30
_LORA_FLAGS = ("--enable-lora", "--max-loras", "--max-cpu-loras", "--max-lora-rank", "--lora-target-modules")


@dataclass(frozen=True, slots=True)
class _Size:
    """How much is measured.

    Attributes:
        adapters: numbers of adapters in a cell; 0: requests for the base.
        tokens: of each prompt and of each answer.
        waves: requests of a cell, as a multiple of its concurrency.
    """

    slots: int
    adapters: tuple[int, ...]
    concurrency: tuple[int, ...]
    tokens: int
    waves: int
    rounds: int


_FULL = _Size(slots=64, adapters=(0, 1, 4, 16, 64), concurrency=(32, 128), tokens=128, waves=3, rounds=3)
_QUICK = _Size(slots=4, adapters=(0, 1, 4), concurrency=(4, 8), tokens=16, waves=2, rounds=1)


@dataclass(frozen=True, slots=True)
class Cell:
    """One server's rounds with some adapters at one concurrency; throughput in output tokens a second."""

    server: str
    adapters: int
    concurrency: int
    output_tokens_per_s: list[float]
    ttft_p50_s: list[float]


def run(options: Options) -> Result:
    """Measure every cell.

    Raises:
        ServerFailed, LoadError
    """
    size, base = _QUICK if options.quick else _FULL, options.the_base()
    folders = options.adapters((_RANK,), max(size.adapters))
    adapters = {f"adapter-{number}": folder for number, folder in enumerate(folders)}
    with (
        tempfile.TemporaryDirectory(dir=options.home) as folder,
        _servers(options, size, base, adapters, Path(folder)) as servers,
    ):
        cells = _cells(servers, size, list(adapters), models.vocabulary(base))
    off = {cell.concurrency: report.Spread.of(cell.output_tokens_per_s).median for cell in cells if cell.server == OFF}
    most = [cell for cell in cells if (cell.server, cell.adapters) == (TENORA, max(size.adapters))]
    ratios = {
        cell.concurrency: report.Spread.of(cell.output_tokens_per_s).median / off[cell.concurrency] for cell in most
    }
    ratios_text = ", ".join(f"{ratio:.2f} at concurrency {concurrency}" for concurrency, ratio in ratios.items())
    return Result(
        f"Tenora with {max(size.adapters)} adapters, in parts of vLLM's tokens/s without LoRA: {ratios_text}",
        {"size": asdict(size), "rank": _RANK, "seed": _SEED, "cells": [asdict(cell) for cell in cells]},
        [_table(cells, off)],
    )


@contextmanager
def _servers(
    options: Options, size: _Size, base: Path, adapters: Mapping[str, Path], folder: Path
) -> Iterator[dict[str, Server]]:
    """All three, started at the same time. An idle one takes no time of the card."""
    settings = {
        "TENORA_ENGINE__DTYPE": "bfloat16",
        "TENORA_ENGINE__MAX_LORAS": str(size.slots),
        "TENORA_ENGINE__MAX_LORA_RANK": str(_RANK),
    }
    if options.device == "cuda":
        settings |= {
            "TENORA_ENGINE__MAX_MODEL_LEN": "8192",
            "TENORA_ENGINE__KV_CACHE_BYTES": str(_KV_CACHE_BYTES),
            "TENORA_ENGINE__EXTRA_ARGS": json.dumps({"gpu_memory_utilization": _GPU_MEMORY}),
        }
    arguments = rivals.vllm_arguments(base, slots=size.slots, host_adapters=size.slots, settings=settings)
    starts = {
        OFF: rivals.vllm(base, {}, arguments=without_lora(arguments), folder=folder / "off"),
        VLLM: rivals.vllm(base, adapters, arguments=arguments, folder=folder / "vllm"),
        TENORA: rivals.tenora(base, adapters, home=options.home, folder=folder / "tenora", settings=settings),
    }
    with ExitStack() as stack, ThreadPoolExecutor(len(starts)) as threads:
        jobs = {name: threads.submit(stack.enter_context, start) for name, start in starts.items()}
        yield {name: job.result() for name, job in jobs.items()}


def without_lora(arguments: Sequence[str]) -> list[str]:
    """vLLM's arguments without those of LoRA."""
    kept: list[str] = []
    dropping = False
    for argument in arguments:
        if argument.startswith("--"):
            dropping = argument in _LORA_FLAGS
        if not dropping:
            kept.append(argument)
    return kept


def _cells(servers: Mapping[str, Server], size: _Size, names: Sequence[str], vocabulary: int) -> list[Cell]:
    cells = [
        Cell(server, count, concurrency, [], [])
        for concurrency in size.concurrency
        for count in size.adapters
        for server in servers
        if server != OFF or count == 0
    ]
    prompts = Prompts(vocabulary, _SEED)
    for server in servers.values():
        # Graphs, caches and slots are warm before the first round.
        _measure(server, names if server.adapter_headers else [], max(size.concurrency), size, prompts)
    for _ in range(size.rounds):
        for cell in cells:
            figures = _measure(servers[cell.server], names[: cell.adapters], cell.concurrency, size, prompts)
            cell.output_tokens_per_s.append(figures["output_tokens_per_s"])
            cell.ttft_p50_s.append(figures["ttft_p50_s"])
    return cells


def _measure(server: Server, names: Sequence[str], concurrency: int, size: _Size, prompts: Prompts) -> dict[str, float]:
    """Closed loop: as many chains of requests as the concurrency, the adapters in turn."""
    script = Script()
    models: list[str | None] = [*names] or [None]
    for client in range(concurrency):
        in_turn = [models[(client + wave) % len(models)] for wave in range(size.waves)]
        script.chain(
            server.name,
            [
                Request(0.0, server.model_for(name), server.headers_for(name), prompts.take(size.tokens), size.tokens)
                for name in in_turn
            ],
        )
    result = drive(Plan(server.port, script.requests))
    require_answered(script.served(result.samples))
    return report.measure_open(result, [request.model for request in script.requests])


def _table(cells: Sequence[Cell], off: Mapping[int, float]) -> Table:
    title = "output tokens/s, and its ratio to vLLM without LoRA"
    table = Table("concurrency", "adapters", "server", "tokens/s", "ratio", "TTFT p50, ms", title=title)
    for cell in cells:
        rate = report.Spread.of(cell.output_tokens_per_s)
        ratio, ttft_ms = rate.median / off[cell.concurrency], 1000 * report.Spread.of(cell.ttft_p50_s).median
        adapters = str(cell.adapters) if cell.adapters else "base"
        figures = (report.spread(rate, 0), f"{ratio:.3f}", f"{ttft_ms:.1f}")
        table.add_row(str(cell.concurrency), adapters, cell.server, *figures)
    return table
