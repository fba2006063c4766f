"""LoRA matrices applied adapter by adapter on a CPU.

vLLM's CPU path copies an adapter's matrices once for every token of a step (``lora_weights[token_indices]``) and pads
every adapter to ``max_lora_rank``. Here tokens are ordered by slot once per batch, and each slot's tokens meet its
matrices in place, cut to its rank: the segmented product of Punica (Chen et al., 2023). Where these are small, copies
for every token are quicker still, cut to the largest rank of the batch. Tokens without an adapter are left out; vLLM
gives them whatever the last slot holds (vllm#48421).
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

#: Up to so many bytes of matrices for each group, and in all, copying them for every token is cheaper than a product
#: per group: measured on two cores in float32 and bfloat16 for 2 to 64 groups, 1 to 64 tokens in each, hidden sizes 128
#: to 4096 and ranks 8 to 64. At twice the first both ways take the same time; beyond the second the system is asked for
#: fresh memory each time.
_GROUP_BYTES, _ALL_BYTES = 2**18, 2**25


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
        #: Tokens with an adapter, by slot, and where each of these is among them; whether all tokens have one; slots of
        #: the tokens, as they come or, if some have none, by slot.
        self._rows = self._back = self._slots = torch.empty(0, dtype=torch.long)
        self._all = False
        self._groups: list[tuple[int, int, int, int]] = []
        self._rank = 0
        self._one_slot: int | None = None

    def update_metadata(self, mapping: Any, lora_index_to_id: list[int | None], *args: Any, **kwargs: Any) -> None:
        """Order this batch's tokens by slot; called when the batch or the slots changed."""
        super().update_metadata(mapping, lora_index_to_id, *args, **kwargs)
        indices = self.token_lora_indices
        order = torch.argsort(indices, stable=True)
        slots, counts = (found.tolist() for found in torch.unique_consecutive(indices[order], return_counts=True))
        without = counts[0] if slots and slots[0] < 0 else 0
        used, counts = (slots[1:], counts[1:]) if without else (slots, counts)
        ends = list(accumulate(counts))
        ranks = [self._rank_of(lora_index_to_id[slot]) for slot in used]
        # Slot, its rows, its rank. torch's grouped_mm visits every slot, in use or not, for a microsecond or more each.
        self._groups = list(zip(used, [0, *ends], ends, ranks, strict=False))
        self._rank = max(ranks, default=0)
        self._all = not without
        self._rows = order[without:]
        self._slots = indices if self._all else indices[self._rows]
        self._back = torch.argsort(order) if self._all else order
        self._one_slot = used[0] if self._all and len(used) == 1 else None

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
        product = self._token_by_token if self._copying_is_cheaper(a, b) else self._group_by_group
        added = product(x, a, b)
        if self._all:
            y.add_(added, alpha=scale)
        else:
            y.index_add_(0, self._rows, added, alpha=scale)

    def _token_by_token(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """A copy of its matrices for every token; the small factor goes first in a product, or it is slow."""
        x = x if self._all else x.index_select(0, self._rows)
        low = torch.bmm(x.unsqueeze(1), a.index_select(0, self._slots).transpose(1, 2))
        return torch.bmm(low, b.index_select(0, self._slots).transpose(1, 2)).squeeze(1)

    def _group_by_group(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = x.index_select(0, self._rows)
        added = torch.cat(
            [x[begin:end] @ a[slot, :rank].t() @ b[slot, :, :rank].t() for slot, begin, end, rank in self._groups]
        )
        return added.index_select(0, self._back) if self._all else added

    def _copying_is_cheaper(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        copied = len(self._rows) * self._rank * (a.shape[2] + b.shape[1]) * a.element_size()
        return copied <= min(len(self._groups) * _GROUP_BYTES, _ALL_BYTES)
