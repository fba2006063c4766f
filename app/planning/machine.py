"""Inputs of planning: this machine's memory and the base's files. The only module of the package that does I/O."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from app.planning.base import PlannedBase, Stored, plan_base
from app.planning.budget import CPU_KV_CACHE_BYTES, GIB, Machine, Serving
from app.planning.slots import slots_for
from app.settings import EngineSettings, Settings

_CONFIG, _INDEX = "config.json", "model.safetensors.index.json"
#: File prefix of Meta's and Mistral's copy of the sharded weights; vLLM skips it too.
_DUPLICATE = "consolidated"
_LENGTH_BYTES, _MAX_HEADER_BYTES = 8, 100_000_000

_GPU_MEMORY_UTILIZATION = 0.92


class UnreadableBase(ValueError):
    """The path holds no base model. The message names the file."""


def resolve_slots(settings: Settings, base: Path, machine_of: Callable[[], Machine]) -> int:
    """Return the number of LoRA slots of the engine. Reads the base's files.

    It depends on the machine's total memory, never on free memory, so every start gives the same number.

    Args:
        machine_of: returns the engine's machine, see :func:`app.engine.vllm.platform.this_machine`. It is not called
            if the settings have the number.

    Raises:
        UnreadableBase: the base's files cannot be read.
        adapters.errors.UnsupportedBase: planning does not support the base's config.
    """
    engine = settings.engine
    if engine.max_loras != "auto":
        return engine.max_loras
    machine = machine_of()
    planned = read_base(base, engine_dtype=engine.dtype)
    return slots_for(planned, machine, serving_of(engine, planned, machine))


def read_base(path: Path, *, engine_dtype: str = "auto") -> PlannedBase:
    """Read a base from its folder, or from a ``config.json`` alone, whose weights are then derived from the config.

    Raises:
        UnreadableBase: the config is missing or not a JSON object, or a weight file is not a safetensors file.
        adapters.errors.UnsupportedBase: the base is not a Llama.
    """
    file = path / _CONFIG if path.is_dir() else path
    try:
        config = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UnreadableBase(f"There is no file {file}. Give a model's folder, or its config.json.") from None
    except ValueError:
        raise UnreadableBase(f"{file} does not hold a JSON object.") from None
    if not isinstance(config, dict):
        raise UnreadableBase(f"{file} does not hold a JSON object.")
    return plan_base(config, engine_dtype=engine_dtype, stored=_stored(file.parent) if path.is_dir() else ())


def serving_of(engine: EngineSettings, base: PlannedBase, machine: Machine) -> Serving:
    """Combine the engine's settings with vLLM's defaults."""
    extra = {name.lstrip("-").replace("-", "_"): value for name, value in engine.extra_args.items()}
    tokens, sequences = default_batch(machine, engine.tensor_parallel_size)
    return Serving(
        max_lora_rank=engine.max_lora_rank,
        max_model_len=engine.max_model_len or base.context,
        sequences=_number(extra, "max_num_seqs", sequences),
        batched_tokens=_number(extra, "max_num_batched_tokens", tokens),
        kv_cache_bytes=engine.kv_cache_bytes or (CPU_KV_CACHE_BYTES if machine.cpu else None),
        host_bytes=engine.host_bytes,
        tensor_parallel_size=engine.tensor_parallel_size,
        lora_head=engine.lora_head,
        utilization=_share(extra, "gpu_memory_utilization", _GPU_MEMORY_UTILIZATION),
    )


def default_batch(machine: Machine, devices: int) -> tuple[int, int]:
    """Return vLLM's default tokens and sequences of a step (engine/arg_utils.py: get_batch_defaults).

    vLLM gives an A100 of 80 GB less than this. Planning does not know the name of the GPU.
    """
    if machine.cpu:
        return 2048 * devices, 128 * devices
    if machine.memory >= 160 * GIB:
        return 16384, 1024
    return (8192, 1024) if machine.memory >= 70 * GIB else (2048, 256)


def host_memory(root: Path = Path("/")) -> int:
    """Return the machine's memory in bytes, or the limit of this process's control groups (v1 or v2) if lower."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    return min([total, *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """Yield the memory limits of this process's control group and its ancestors. In a container, it is the root."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folder, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = Path(path).parts[1:]
        for depth in range(len(parts) + 1):
            file = folder.joinpath(*parts[:depth], name)
            # Without a limit, v2 writes "max", and v1 a number beyond any machine's memory.
            if file.is_file() and (text := file.read_text().strip()).isdecimal():
                yield int(text)


def _stored(folder: Path) -> tuple[Stored, ...]:
    """Read the headers of all weight files in a folder."""
    index = folder / _INDEX
    if index.is_file():
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors") if not path.name.startswith(_DUPLICATE))
    return tuple(tensor for name in names for tensor in _header(folder / name))


def _header(file: Path) -> list[Stored]:
    """Read a safetensors header: 8 bytes of length, then a JSON object of dtype, shape and offsets by name."""
    try:
        with file.open("rb") as content:
            length = int.from_bytes(content.read(_LENGTH_BYTES), "little")
            # If the length exceeds the format's limit, the truncated header fails to parse.
            entries = json.loads(content.read(min(length, _MAX_HEADER_BYTES)))
        return [
            Stored(name, tuple(entry["shape"]), entry["dtype"], entry["data_offsets"][1] - entry["data_offsets"][0])
            for name, entry in entries.items()
            if name != "__metadata__"
        ]
    except (ValueError, LookupError, TypeError, AttributeError, FileNotFoundError):
        raise UnreadableBase(f"{file} is missing or is not a safetensors file.") from None


def _number(extra: Mapping[str, Any], name: str, default: int) -> int:
    value = extra.get(name)
    return value if type(value) is int and value > 0 else default


def _share(extra: Mapping[str, Any], name: str, default: float) -> float:
    value = extra.get(name)
    return float(value) if isinstance(value, int | float) and 0 < value <= 1 else default
