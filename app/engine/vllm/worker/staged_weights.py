"""Facts about an adapter's weights in host memory."""

from typing import Any

import torch
from vllm.lora.lora_model import LoRAModel


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
