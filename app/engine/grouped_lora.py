"""LoRA matrices applied adapter by adapter on a CPU.

vLLM's CPU path copies an adapter's matrices once for every token of a step (``lora_weights[token_indices]``) and pads
every adapter to ``max_lora_rank``. Here tokens are ordered by slot once per batch, and each slot's tokens meet its
matrices in place, cut to its rank: the segmented product of Punica (Chen et al., 2023). Tokens without an adapter are
left out; vLLM gives them whatever the last slot holds (vllm#48421).
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

#: Below so many bytes of matrices copied per group, copying them for each token is cheaper than a product per group:
#: measured on two cores for 8 to 64 groups, hidden sizes 128 to 4096 and ranks 8 to 64.
_GATHER_BYTES = {torch.float32: 2**16}
_GATHER_BYTES_16_BIT = 2**19
_FEW_GROUPS = 8


class GroupedPunicaWrapper(PunicaWrapperCPU):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's CPU wrapper with the products of linear layers grouped by slot.

    Args:
        rank_of: the largest rank of the adapter with this id among all its modules.
    """

    def __init__(
        self, max_num_batched_tokens: int, max_batches: int, device: Any, *, rank_of: Callable[[int], int]
    ) -> None:
        super().__init__(max_num_batched_tokens, max_batches, device)
        self._rank_of = rank_of
        self._rows = torch.empty(0, dtype=torch.long)
        self._slots = torch.empty(0, dtype=torch.long)
        self._groups: list[tuple[int, int, int, int]] = []
        self._rank = 0
        self._one_slot: int | None = None

    def update_metadata(self, mapping: Any, lora_index_to_id: list[int | None], *args: Any, **kwargs: Any) -> None:
        """Order this batch's tokens by slot; called when the batch or the slots changed."""
        super().update_metadata(mapping, lora_index_to_id, *args, **kwargs)
        indices = self.token_lora_indices
        order = torch.argsort(indices, stable=True)
        ordered = indices[order]
        slots, counts = (found.tolist() for found in torch.unique_consecutive(ordered, return_counts=True))
        without = counts[0] if slots and slots[0] < 0 else 0
        self._rows, self._slots = order[without:], ordered[without:]
        used, counts = (slots[1:], counts[1:]) if without else (slots, counts)
        ends = list(accumulate(counts))
        ranks = [self._rank_of(lora_index_to_id[slot]) for slot in used]
        # Slot, its rows, its rank. torch's grouped_mm visits every slot, in use or not, for a microsecond or more each.
        self._groups = list(zip(used, [0, *ends], ends, ranks, strict=False))
        self._rank = max(ranks, default=0)
        self._one_slot = used[0] if len(used) == 1 and len(self._rows) == len(indices) else None

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **_: Any,
    ) -> None:
        """Add each token's ``x @ A.T @ B.T`` to ``y``, in place.

        Args:
            y: [tokens, sum of output_slices], or with an outer dimension of 1.
            x: [tokens, input size].
            lora_a_stacked: one per slice, [slots, 1, max rank, input size].
            lora_b_stacked: one per slice, [slots, 1, slice, max rank].
            scale: 1; adapters are scaled when they are loaded.
        """
        if not self._groups:
            return
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        start = 0
        for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            self._add(y[:, start : start + width], x, a[:, 0, : self._rank], b[:, 0, :, : self._rank], scale)
            start += width

    def _add(self, y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        if self._one_slot is not None:
            y.addmm_(x @ a[self._one_slot].t(), b[self._one_slot].t(), alpha=scale)
            return
        x = x[self._rows]
        if self._copying_is_cheaper(a, b):
            low = torch.bmm(a[self._slots], x.unsqueeze(2))
            added = torch.bmm(b[self._slots], low).squeeze(2)
        else:
            parts = [
                x[begin:end] @ a[slot, :rank].t() @ b[slot, :, :rank].t() for slot, begin, end, rank in self._groups
            ]
            added = torch.cat(parts)
        y.index_add_(0, self._rows, added, alpha=scale)

    def _copying_is_cheaper(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        if len(self._groups) <= _FEW_GROUPS:
            return False
        copied = len(self._rows) * self._rank * (a.shape[2] + b.shape[1]) * a.element_size()
        return copied <= len(self._groups) * _GATHER_BYTES.get(a.dtype, _GATHER_BYTES_16_BIT)
