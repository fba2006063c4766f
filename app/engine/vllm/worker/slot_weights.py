"""Adapter weights in host memory, and their copy into a module's slot."""

from collections.abc import Sequence
from typing import Any

import torch
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.lora_model import LoRAModel


def write(module: Any, index: int, weights: Any) -> None:
    """Write weights into a slot like vLLM's ``set_lora``, but without first clearing what is overwritten.

    Steps wait meanwhile. See docs/decisions/0016-stage-during-steps-copy-between-them.md.

    Args:
        module: one of vLLM's layers with LoRA.
        index: index of the slot.
        weights: an adapter's weights for this module, merged as the module needs them.
    """
    lora_a, lora_b = _parts(weights.lora_a), _parts(weights.lora_b)
    if not (isinstance(module, BaseLinearLayerWithLoRA) and _fit(module, lora_a, lora_b)):
        set_lora(module, index, weights)
        return
    for stacked, part in zip(module.lora_a_stacked, lora_a, strict=True):
        _fill(stacked[index, 0], part)
    for stacked, part in zip(module.lora_b_stacked, lora_b, strict=True):
        _fill(stacked[index, 0].t(), None if part is None else part.t())


def set_lora(module: Any, index: int, weights: Any) -> None:
    """Write weights into a slot by vLLM's own method."""
    module.set_lora(index, weights.lora_a, weights.lora_b)


def _fit(module: BaseLinearLayerWithLoRA, lora_a: Sequence[Any], lora_b: Sequence[Any]) -> bool:
    """Return whether each part fits whole into a slice of the module. It does not if several cards share the module."""
    slots_a, slots_b = module.lora_a_stacked, module.lora_b_stacked
    return (
        len(lora_a) == len(lora_b) == len(slots_a)
        and all(a is None or a.shape[1] == slot.shape[3] for a, slot in zip(lora_a, slots_a, strict=True))
        and all(b is None or b.shape[0] == slot.shape[2] for b, slot in zip(lora_b, slots_b, strict=True))
    )


def _fill(slot: torch.Tensor, part: torch.Tensor | None) -> None:
    """Copy a part, [rank, size], into a slot, [max rank, size], and clear the remaining ranks."""
    rank = 0 if part is None else len(part)
    if part is not None:
        slot[:rank].copy_(part, non_blocking=True)
    if rank < len(slot):
        slot[rank:].zero_()


def is_finite(lora: LoRAModel) -> bool:
    """Return whether the sums of all LoRA B matrices are finite, which implies that their elements are."""
    parts = (part for layer in lora.loras.values() for part in _parts(layer.lora_b) if part is not None)
    return all(bool(part.sum().isfinite()) for part in parts)


def largest_rank(lora: LoRAModel) -> int:
    """Largest rank among all modules. There is at least one module."""
    return max(len(part) for layer in lora.loras.values() for part in _parts(layer.lora_a) if part is not None)


def size_of(lora: LoRAModel) -> int:
    """Bytes of all matrices."""
    weights = [part for layer in lora.loras.values() for part in (*_parts(layer.lora_a), *_parts(layer.lora_b))]
    return sum(part.nbytes for part in weights if part is not None)


def _parts(weights: Any) -> list[torch.Tensor | None]:
    """Parts of a layer's matrix: one for each slice of a merged layer."""
    return weights if isinstance(weights, list) else [weights]
