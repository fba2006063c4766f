"""Adapters as PEFT itself writes them, over a tiny random Llama."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from adapters.geometry import LINEAR_MODULES

#: Every dimension differs from the others, so that a test notices any confusion.
TINY_LLAMA = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "max_position_embeddings": 64,
}


def tiny_llama(*, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**TINY_LLAMA))


def make_adapter(
    directory: Path,
    *,
    base: LlamaForCausalLM | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 1,
    save_embedding_layers: bool | str = False,
    **options: Any,
) -> Path:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors``; lora_B is random too, as after training.

    ``options`` are LoraConfig's. PEFT puts its layers into ``base``: give each adapter a fresh one.
    """
    options = {"r": 4, "lora_alpha": 8, "target_modules": list(LINEAR_MODULES), "task_type": "CAUSAL_LM"} | options
    with warnings.catch_warnings():
        # PEFT warns about options that the tests choose on purpose.
        warnings.simplefilter("ignore")
        base = base or tiny_llama()
        torch.manual_seed(seed)
        model = get_peft_model(base, LoraConfig(**options))
        model.save_pretrained(directory, save_embedding_layers=save_embedding_layers)
    path = directory / "adapter_model.safetensors"
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: (torch.randn(tensor.shape, generator=generator) * 0.1 if "lora_B" in name else tensor).to(dtype)
        for name, tensor in load_file(path).items()
    }
    save_file(tensors, path, metadata={"format": "pt"})
    return directory


def read_config(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "adapter_config.json").read_text())
