"""Planned bytes equal those of vLLM's model and LoRA layers, built without memory (torch's meta device)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import (
    cleanup_dist_env_and_memory,
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.lora.utils import from_layer, from_layer_logits_processor
from vllm.model_executor.layers import linear, vocab_parallel_embedding
from vllm.model_executor.models import llama

from adapters.geometry import LINEAR_MODULES
from app.planning.base import plan_base, weight_bytes
from app.planning.budget import head_bytes, kv_token_bytes, slot_bytes
from tests.support.base_configs import LARGE, TOY

SLOTS = 3


@dataclass
class Allocated:
    """Bytes that vLLM allocates on one device."""

    weights: int
    slots: int
    kv_token: int


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Process group with one member, from which vLLM's layers read their rank."""
    meeting = tmp_path_factory.mktemp("group") / "meeting"
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{meeting}", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    yield
    cleanup_dist_env_and_memory()


def allocate(folder: Path, rank: int, *, head: bool = False) -> Allocated:
    """Build the model and wrap its linear layers as vLLM's LoRA manager does."""
    arguments = EngineArgs(
        model=str(folder),
        enable_lora=True,
        max_loras=SLOTS,
        max_lora_rank=rank,
        max_model_len=256,
        load_format="dummy",
        skip_tokenizer_init=True,
    )
    config = arguments.create_engine_config()
    before = torch.get_default_dtype()
    with set_current_vllm_config(config):
        torch.set_default_dtype(config.model_config.dtype)
        try:
            with torch.device("meta"):
                model = llama.LlamaForCausalLM(vllm_config=config)
        finally:
            torch.set_default_dtype(before)
        weights = sum(map(bytes_of, model.parameters()))
        layers = [wrapped(name, module, config) for name, module in model.named_modules() if targeted(name, model)]
        attention = model.model.layers[0].self_attn.attn.get_kv_cache_spec(config)
    heads = (
        [from_layer_logits_processor(model.logits_processor, model.lm_head, SLOTS, config.lora_config)] if head else []
    )
    stacks = [stack for layer in layers for stack in (layer.lora_a_stacked, layer.lora_b_stacked)]
    return Allocated(
        weights=weights,
        slots=sum(bytes_of(tensor) for stack in stacks for tensor in stack)
        + sum(bytes_of(one.lora_a_stacked) + bytes_of(one.lora_b_stacked) for one in heads),
        kv_token=attention.page_size_bytes * len(model.model.layers) // attention.block_size,
    )


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def targeted(name: str, model: llama.LlamaForCausalLM) -> bool:
    last = name.rpartition(".")[2]
    return any(part in LINEAR_MODULES for part in model.packed_modules_mapping.get(last, [last]))


def wrapped(name: str, module: torch.nn.Module, config: VllmConfig) -> BaseLayerWithLoRA:
    packed = llama.LlamaForCausalLM.packed_modules_mapping.get(name.rpartition(".")[2], [])
    layer = from_layer(module, SLOTS, config.lora_config, packed, config.model_config.hf_config)
    assert isinstance(layer, BaseLayerWithLoRA), name
    return layer


@pytest.mark.parametrize(
    ("config", "rank", "devices"),
    [
        (TOY, 64, 1),
        (TOY | {"tie_word_embeddings": True}, 8, 1),
        (TOY | {"attention_bias": True, "mlp_bias": True}, 16, 2),
        (TOY | {"head_dim": 32, "dtype": "float16"}, 16, 4),
        (TOY, 64, 8),
        (LARGE, 64, 1),
        (LARGE, 16, 4),
        (LARGE, 8, 16),
    ],
)
def test_every_byte_is_planned(tmp_path, monkeypatch, one_process, config, rank, devices):
    (tmp_path / "config.json").write_text(json.dumps(config))
    for module in (linear, vocab_parallel_embedding, llama):
        # Each device would need its own process. Only the sizes on the first device are needed.
        monkeypatch.setattr(module, "get_tensor_model_parallel_world_size", lambda: devices)
    allocated = allocate(tmp_path, rank)
    base = plan_base(config)
    planned = Allocated(
        weights=weight_bytes(base, devices),
        slots=SLOTS * slot_bytes(base, rank, devices),
        kv_token=kv_token_bytes(base, devices),
    )
    assert planned == allocated


@pytest.mark.parametrize("config", [TOY, TOY | {"tie_word_embeddings": True}, LARGE])
def test_every_byte_of_the_head_is_planned(tmp_path, one_process, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    planned = SLOTS * slot_bytes(plan_base(config), 16, head=True)
    assert planned == allocate(tmp_path, 16, head=True).slots
    assert planned - allocate(tmp_path, 16).slots == SLOTS * head_bytes(plan_base(config), 16)
