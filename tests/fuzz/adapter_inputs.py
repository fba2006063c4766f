"""Inputs for adapter validation: a good pair of files, mutated at the structural points of the formats."""

import json
import random
from typing import Any

import numpy as np
from safetensors.numpy import save

from adapters.geometry import BaseGeometry, read_geometry
from tests.fuzz.mutations import dump, mutate_bytes, mutate_json, mutate_text

GEOMETRY: BaseGeometry = read_geometry(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 6,
        "intermediate_size": 10,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 16,
        "dtype": "bfloat16",
    }
)

MAX_RANK = 8

MANIFEST: dict[str, Any] = {
    "alpha_pattern": {"q_proj": 8},
    "auto_mapping": None,
    "base_model_name_or_path": "base",
    "bias": "none",
    "exclude_modules": None,
    "inference_mode": True,
    "init_lora_weights": True,
    "layers_pattern": None,
    "layers_to_transform": [0, 1],
    "lora_alpha": 4,
    "lora_dropout": 0.05,
    "modules_to_save": None,
    "peft_type": "LORA",
    "peft_version": "0.21.0",
    "r": 2,
    "rank_pattern": {"model.layers.0.self_attn.q_proj": 3},
    "target_modules": ["q_proj", "down_proj"],
    "task_type": "CAUSAL_LM",
    "use_dora": False,
    "use_rslora": False,
}


def _tensors() -> dict[str, np.ndarray[Any, Any]]:
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for layer in range(GEOMETRY.layers):
        for module in ("self_attn.q_proj", "mlp.down_proj"):
            inputs, outputs = GEOMETRY.dims[module.partition(".")[2]]
            rank = 3 if (layer, module) == (0, "self_attn.q_proj") else 2
            prefix = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{prefix}.lora_A.weight"] = np.full((rank, inputs), 0.5, np.float32)
            tensors[f"{prefix}.lora_B.weight"] = np.full((outputs, rank), 0.25, np.float16)
    return tensors


#: Bytes of an ``adapter_model.safetensors`` that fits the manifest and the geometry.
GOOD_WEIGHTS = save(_tensors(), metadata={"format": "pt"})


def adapter_input(rng: random.Random) -> tuple[bytes, bytes]:
    """Generate ``adapter_config.json`` and ``adapter_model.safetensors``; one of the two is mostly good."""
    if rng.random() < 0.5:
        return _config(rng), _weights(rng) if rng.random() < 0.1 else GOOD_WEIGHTS
    return _config(rng) if rng.random() < 0.1 else dump(random.Random(7), MANIFEST), _weights(rng)


def _config(rng: random.Random) -> bytes:
    if rng.random() < 0.002:
        return _monster(rng)
    manifest: Any = MANIFEST
    for _ in range(rng.choice((1, 1, 2, 4))):
        manifest = mutate_json(rng, manifest)
    raw = dump(rng, manifest)
    return mutate_bytes(rng, raw, (GOOD_WEIGHTS,)) if rng.random() < 0.15 else raw


def _weights(rng: random.Random) -> bytes:
    length = int.from_bytes(GOOD_WEIGHTS[:8], "little")
    raw_header, data = GOOD_WEIGHTS[8 : 8 + length], GOOD_WEIGHTS[8 + length :]
    header: bytes = raw_header
    if rng.random() < 0.002:
        header = _monster(rng)
    elif rng.random() < 0.7:
        entries: Any = _HEADER
        for _ in range(rng.choice((1, 1, 2, 4))):
            entries = mutate_json(rng, entries) if rng.random() < 0.6 else _mutate_layout(rng, entries)
        header = dump(rng, entries)
    if rng.random() < 0.3:
        data = mutate_bytes(rng, data, (raw_header,))
    if rng.random() < 0.15:
        header = mutate_bytes(rng, header, (data,))
    told = len(header) + (rng.choice((0, 0, 0, 0, 1, -1, 8, 2**20, 2**62)) if rng.random() < 0.4 else 0)
    raw = (told % 2**64).to_bytes(8, "little") + header + data
    return mutate_bytes(rng, raw, (dump(rng, MANIFEST),)) if rng.random() < 0.2 else raw


def _mutate_layout(rng: random.Random, entries: Any) -> Any:
    """Change a tensor's offsets, shape or dtype, with the right types."""
    if not isinstance(entries, dict) or not entries:
        return entries
    name = rng.choice(list(entries))
    entry = entries[name]
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        return entries
    other = _HEADER[rng.choice(list(_HEADER))]
    changes = (
        {"dtype": rng.choice(("F32", "F16", "BF16", "F64", "I8", "F8_E4M3", "BOOL", ""))},
        {"shape": rng.choice(([], [0], [2**31], [2**31 - 1] * 3, [1] * 9, [6, 3], [3, 6], [18], other.get("shape")))},
        {"data_offsets": rng.choice(([0, 0], [0, 72], [72, 0], [2**63, 2**63 + 72], other.get("data_offsets")))},
    )
    return entries | {rng.choice((name, mutate_text(rng, name))): entry | rng.choice(changes)}


def _read_header() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOOD_WEIGHTS[8 : 8 + int.from_bytes(GOOD_WEIGHTS[:8], "little")])
    return found


_HEADER = _read_header()


def _monster(rng: random.Random) -> bytes:
    """Generate text close to the size limit, in shapes that are slow to parse."""
    size = 2**20 - rng.randrange(64)
    unit: bytes = rng.choice((b"[", b'{"a":', b'"', b'\\"', b"[],", b'{"":0},', b"1", b"\\u0000", b" ", b'"a":1,'))
    head: bytes = rng.choice((b"{", b'{"a":', b'{"a":"', b'{"a":['))
    return (head + unit * (size // len(unit)))[: size - 4] + rng.choice((b"", b'"}', b"]}", b"}"))
