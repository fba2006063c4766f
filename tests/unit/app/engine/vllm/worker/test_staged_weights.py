"""Write an adapter into a slot with the same result as vLLM's ``set_lora``, regardless of the slot's old content."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.layers.column_parallel_linear import (
    MergedColumnParallelLinearWithLoRA,
    MergedQKVParallelLinearWithLoRA,
    QKVParallelLinearWithLoRA,
)
from vllm.lora.layers.row_parallel_linear import RowParallelLinearWithLoRA

from app.engine.vllm.worker import staged_weights
from app.engine.vllm.worker.cpu_lora import lay_out

SLOTS, MAX_RANK, INPUTS = 3, 8, 12
RANKS = [1, 3, MAX_RANK]
ONE = [BaseLinearLayerWithLoRA, QKVParallelLinearWithLoRA, RowParallelLinearWithLoRA]
MERGED = [MergedColumnParallelLinearWithLoRA, MergedQKVParallelLinearWithLoRA]
#: Memory layouts of slots: vLLM's, and the one for small slots on a CPU.
LAYOUTS = [lambda stacked: stacked, lay_out]


def layer(kind: type[Any], outputs: Sequence[int], layout: Any = LAYOUTS[0]) -> Any:
    """Build one of vLLM's wrapped layers, with slots that hold another adapter's old weights."""
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    module.n_slices, module.tp_size = len(outputs), 1
    module.lora_a_stacked = tuple(torch.full((SLOTS, 1, MAX_RANK, INPUTS), 7.0) for _ in outputs)
    module.lora_b_stacked = tuple(layout(torch.full((SLOTS, 1, size, MAX_RANK), 7.0)) for size in outputs)
    return module


def weights(rank: int, outputs: Sequence[int | None]) -> SimpleNamespace:
    """Build an adapter's matrices for a layer, as lists if it has several slices; None for a slice without LoRA."""
    lora_a = [None if size is None else torch.randn(rank, INPUTS) for size in outputs]
    lora_b = [None if size is None else torch.randn(size, rank) for size in outputs]
    return SimpleNamespace(lora_a=lora_a, lora_b=lora_b) if len(outputs) > 1 else only(lora_a, lora_b)


def only(lora_a: Sequence[Any], lora_b: Sequence[Any]) -> SimpleNamespace:
    return SimpleNamespace(lora_a=lora_a[0], lora_b=lora_b[0])


def test_an_adapter_description_omits_missing_facts() -> None:
    merged = weights(3, [10, None, 6])
    lora = SimpleNamespace(loras={"qkv_proj": merged, "o_proj": weights(5, [4])})
    assert staged_weights.largest_rank(lora) == 5
    assert staged_weights.size_of(lora) == 4 * (2 * 3 * INPUTS + 16 * 3 + 5 * INPUTS + 4 * 5)
    assert staged_weights.is_finite(lora)
    merged.lora_b[2][1, 1] = float("inf")
    assert not staged_weights.is_finite(lora)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vllm_clears_one_slot_in_either_layout(layout: Any) -> None:
    module = layer(BaseLinearLayerWithLoRA, [10, 6], layout)
    module.reset_lora(1)
    for part in (*module.lora_a_stacked, *module.lora_b_stacked):
        assert not part[1].any()
        assert (part[[0, 2]] == 7).all()
