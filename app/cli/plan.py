"""``tenora server plan``: memory budget of an engine. Needs no server, no GPU and no weights."""

import re
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from adapters.errors import UnsupportedBase
from app.planning.advice import RANKS, advise, size
from app.planning.base import PlannedBase, check_split
from app.planning.budget import TYPICAL_TOKENS, Budget, Machine, Serving, budget_of
from app.planning.machine import UnreadableBase, host_memory, read_base, serving_of
from app.planning.slots import slots_for
from app.settings import EngineSettings
from tenora_client.cli.connection import Json
from tenora_client.cli.output import USAGE, emit_json, emit_table, fail

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|[KMGT]i?B?)?", re.ASCII | re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_AUTO, _MOST_SLOTS, _MOST, _LEAST_BYTES = "auto", 1024, 2**31 - 1, 2**20


class Dtype(StrEnum):
    AUTO = "auto"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


def byte_size(text: str) -> int:
    """Parse a size such as 80GiB, 24G, 512MB or 1000000 into bytes. A unit without B is binary."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size. Write a number and a unit, such as 80GiB, 24G or 512MB.")
    number, unit = match[1], (match[2] or "").lower()
    step = 1000 if len(unit) == 2 and unit.endswith("b") else 1024
    size_bytes = int(float(number) * step ** _POWERS.get(unit[:1], 0))
    if size_bytes < _LEAST_BYTES:
        raise typer.BadParameter(f"{text!r} is too small. Write 1MiB or more.")
    return size_bytes


def slot_count(text: str) -> str:
    """Check that the text is ``auto`` or a number of slots that the setting accepts."""
    if text == _AUTO or (re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII) and int(text) <= _MOST_SLOTS):
        return text
    raise typer.BadParameter(f"{text!r} is not a number of slots. Write auto, or 1 to {_MOST_SLOTS}.")


def lora_rank(text: str | int) -> int:
    """Parse a rank that the engine supports. Typer parses the default too."""
    if str(text) not in map(str, RANKS):
        raise typer.BadParameter(f"{text!r} is not a supported rank. Choose from {', '.join(map(str, RANKS))}.")
    return int(text)


def _size_option(*names: str, help: str) -> Any:  # noqa: A002 - the name that typer uses
    return typer.Option(*names, metavar="SIZE", parser=byte_size, help=help)


Base = Annotated[Path, typer.Option(metavar="PATH", help="Folder of the base model, or its config.json alone")]
GpuMemory = Annotated[int | None, _size_option(help="Memory of one GPU, such as 80GiB")]
Memory = Annotated[int | None, _size_option(help="Memory of a machine without a GPU (default: this machine's)")]
Rank = Annotated[int, typer.Option(metavar="RANK", parser=lora_rank, help="Rank to which every slot is padded")]
Slots = Annotated[
    str, typer.Option(metavar="auto|N", parser=slot_count, help="Number of slots; auto is the server's choice")
]
Length = Annotated[
    int | None, typer.Option(min=16, max=_MOST, help="Longest sequence in tokens (default: the base's context)")
]
KvCache = Annotated[
    int | None, _size_option(help="Size of the KV cache (default: 1 GiB on a CPU, the remaining memory on a GPU)")
]
HostMemory = Annotated[
    int | None, _size_option("--host-memory", help="Host memory for staged adapters (default: 4 GiB)")
]


def plan(
    base: Base,
    gpu_memory: GpuMemory = None,
    memory: Memory = None,
    max_lora_rank: Rank = 64,
    adapters: Annotated[int, typer.Option(min=0, max=_MOST, help="Number of adapters that share the slots")] = 200,
    max_loras: Slots = _AUTO,
    max_model_len: Length = None,
    dtype: Annotated[Dtype, typer.Option(help="Dtype of weights, slots and KV cache")] = Dtype.AUTO,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, max=1024, help="Number of GPUs that share the base")] = 1,
    kv_cache: KvCache = None,
    host_bytes: HostMemory = None,
    lora_head: Annotated[bool, typer.Option("--lora-head", help="Give each slot room for lm_head")] = False,
    as_json: Json = False,
) -> None:
    """Show the memory of weights, LoRA slots and KV cache, the sequences that fit in the rest, and advice."""
    if gpu_memory and memory:
        fail("--memory and --gpu-memory exclude each other. Give one of them.", USAGE)
    machine = Machine(gpu_memory, cpu=False) if gpu_memory else Machine(memory or host_memory(), cpu=True)
    planned = _read(base, dtype, tensor_parallel_size)
    options = {"kv_cache_bytes": kv_cache, "max_model_len": max_model_len, "host_bytes": host_bytes}
    settings: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    engine = EngineSettings(
        max_lora_rank=max_lora_rank,
        tensor_parallel_size=tensor_parallel_size,
        dtype=dtype,
        lora_head=lora_head,
        **settings,
    )
    serving = serving_of(engine, planned, machine)
    slots = slots_for(planned, machine, serving) if max_loras == _AUTO else int(max_loras)
    _show(budget_of(planned, machine, serving, slots), serving, adapters, as_json=as_json)


def _read(path: Path, dtype: Dtype, devices: int) -> PlannedBase:
    try:
        base = read_base(path, engine_dtype=dtype)
        check_split(base, devices)
    except (UnreadableBase, UnsupportedBase, OSError) as error:
        fail(f"--base: {error}", USAGE)
    return base


def _show(budget: Budget, serving: Serving, adapters: int, *, as_json: bool) -> None:
    advice = advise(budget, serving, adapters)
    if as_json:
        emit_json(
            {
                "budget": asdict(budget),
                "serving": asdict(serving),
                "adapters": adapters,
                "advice": [asdict(piece) for piece in advice],
            }
        )
        return
    emit_table({"part": "part", "size": "size", "": "note"}, _rows(budget, serving, adapters), empty="")
    emit_table({"advice": "code", "": "message"}, [asdict(piece) for piece in advice], empty="There is no advice.")


def _rows(budget: Budget, serving: Serving, adapters: int) -> list[dict[str, str]]:
    rows = [
        ("memory", size(budget.memory), "available to the engine; all figures are for one device"),
        ("base weights", size(budget.weights), ""),
        ("one slot", size(budget.slot), f"padded to rank {serving.max_lora_rank}"),
        ("lm_head", size(budget.head), "of each slot") if serving.lora_head else None,
        ("all slots", size(budget.slots_bytes), f"{budget.slots}, for {adapters} adapters"),
        ("KV cache", size(budget.kv_cache), f"{budget.kv_tokens} tokens of {size(budget.kv_token)}"),
        ("reserve", size(budget.reserve), "estimate: activations, libraries, processes"),
        ("staged adapters", size(budget.host), "in the same memory") if budget.host else None,
        ("left", size(budget.left), ""),
        ("sequences", f"{budget.sequences_full}", f"of max_model_len ({serving.max_model_len} tokens) in parallel"),
        ("sequences", f"{budget.sequences_typical}", f"of {TYPICAL_TOKENS} tokens in parallel"),
        ("adapters per slot", f"{adapters / budget.slots:.3g}", f"host memory stages {budget.staged} more"),
    ]
    return [dict(zip(("part", "size", "note"), row, strict=True)) for row in rows if row]
