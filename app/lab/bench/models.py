"""Base models and adapters of the benchmarks, with random weights, cached in a folder by shape.

Both bases are float32, as are the adapters that PEFT creates for them.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.geometry import LINEAR_MODULES

CONTEXT_LENGTH = 2048

_SEED = 11
#: Large enough against the base's weights that every adapter gives different answers.
_B_SCALE = 0.1


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama. Heads have ``hidden / heads`` dimensions."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int


TOY = Shape("toy", hidden=128, intermediate=256, layers=4, heads=4, kv_heads=2)
#: Rank 64 on all linear layers is 9.3 million parameters: 37 MB in float32.
WIDE = Shape("wide", hidden=1024, intermediate=2816, layers=8, heads=16, kv_heads=4)


def toy_base(home: Path) -> Path:
    """Llama of hidden size 128 and 4 layers (3 MB). An adapter of rank 8 has 0.26 MB."""
    return _base(home, TOY)


def wide_base(home: Path) -> Path:
    """Llama of hidden size 1024 and 8 layers (0.37 GB). An adapter of rank 64 has 37 MB."""
    return _base(home, WIDE)


def served_dtype() -> str:
    """Dtype for serving a base of this project.

    On a GPU it is ``auto``, which serves float32 weights in bfloat16. On a CPU it is float32: bfloat16 is slow there.
    """
    from app.engine.vllm.platform import on_cpu  # imports vLLM

    return "float32" if on_cpu() else "auto"


def vocabulary(base: Path) -> int:
    """Vocabulary size of the base."""
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(base).vocab_size)


def adapters(home: Path, base: Path, count: int, ranks: Sequence[int], seed: int) -> list[Path]:
    """Return ``count`` adapters for every linear layer of a base, with ranks round robin over ``ranks``.

    PEFT creates one template per rank. The adapters share its configuration and keys and have different random values.
    Adapters of an earlier call are reused.
    """
    folder = home / "models" / f"{base.name}-adapters-{seed}"
    folders = [folder / f"{index:05d}-r{ranks[index % len(ranks)]}" for index in range(count)]
    missing = [path for path in folders if not path.exists()]
    templates = {rank: _template(home, base, rank) for rank in ranks} if missing else {}
    for path in missing:
        index, rank = int(path.name[:5]), int(path.name.partition("-r")[2])
        _write_adapter(path, templates[rank], np.random.default_rng([seed, index, rank]))
    return folders


def _base(home: Path, shape: Shape) -> Path:
    folder = home / "models" / shape.name
    if folder.exists():
        return folder
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from app.demo.corpus import load_corpus
    from app.demo.models import make_tokenizer
    from app.demo.recipe import Recipe

    torch.manual_seed(_SEED)
    _hide_progress_bars()
    tokenizer = make_tokenizer(load_corpus(), Recipe(context_length=CONTEXT_LENGTH))
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=CONTEXT_LENGTH,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            dtype=torch.float32,
        )
    )
    _write(folder, tokenizer, model)
    return folder


def _template(home: Path, base: Path, rank: int) -> Path:
    """Adapter with PEFT's names and shapes for a base, and zero weights.

    PEFT gets the shapes of the base only: 8 billion parameters in float32 need 32 GB of memory.
    """
    folder = home / "models" / f"{base.name}-peft-r{rank}"
    if folder.exists():
        return folder
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base), dtype=torch.float32)
    # A fixed name keeps adapter_config.json independent of the base's folder.
    model.name_or_path = f"tenora-{base.name}-base"
    modules = list(LINEAR_MODULES)
    config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules=modules, inference_mode=True)
    # Without this PEFT would ask a model hub whether the vocabulary has grown.
    weights = get_peft_model_state_dict(get_peft_model(model, config), save_embedding_layers=False)
    config.target_modules = modules
    partial = _partial(folder)
    config.save_pretrained(partial)
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, partial / WEIGHTS_NAME)
    partial.rename(folder)
    return folder


def _write_adapter(folder: Path, template: Path, random: np.random.Generator) -> None:
    tensors: dict[str, Any] = {}
    with safe_open(template / WEIGHTS_NAME, framework="np") as file:
        for name in file.keys():  # noqa: SIM118 - the file is no mapping
            shape = file.get_slice(name).get_shape()
            scale = _B_SCALE if "lora_B" in name else shape[1] ** -0.5
            tensors[name] = random.standard_normal(shape, np.float32) * np.float32(scale)
    partial = _partial(folder)
    partial.mkdir(parents=True)
    save_file(tensors, partial / WEIGHTS_NAME, {"format": "pt"})
    shutil.copy(template / CONFIG_NAME, partial)
    partial.rename(folder)


def _write(folder: Path, *parts: Any) -> None:
    partial = _partial(folder)
    for part in parts:
        part.save_pretrained(partial)
    partial.rename(folder)


def _hide_progress_bars() -> None:
    """Hide the progress bars of transformers, which would corrupt the benchmark's."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _partial(folder: Path) -> Path:
    """Temporary name of a folder, renamed once complete: a killed run leaves no half-written folder."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    return partial
