"""LoRA products on a CPU, grouped by adapter.

vLLM's CPU path copies an adapter's matrices once for every token of a step (``lora_weights[token_indices]``) and pads
every adapter to ``max_lora_rank``. Here each token is multiplied by its slot's matrices in place, cut to its rank. The
shapes decide which of three ways is fastest:

- All together: the matrices of several slots, side by side, form one matrix each. Every token is multiplied by all of
  them, and the columns of other slots are cleared in between. That is more arithmetic in fewer calls, for small ones.
- Group by group: tokens are sorted by slot once per batch, and each group is multiplied by its slot's matrices. This is
  the segmented product of Punica (Chen et al., 2023).
- Token by token, as vLLM does, for many groups of few tokens with small matrices.

Tokens without an adapter stay unchanged. vLLM applies the last slot's adapter to them (vllm#48421).
The thresholds below are measured: docs/decisions/0019-three-ways-of-lora-products-on-a-cpu.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

#: Bytes of matrices for each group, and in all, up to which a copy for every token is cheaper than a product per group.
#: Beyond the second, the system is asked for fresh memory each time.
_GROUP_BYTES, _ALL_BYTES = 2**18, 2**25
#: Bytes of matrices, columns and tokens up to which one product for all slots is the fastest way.
_TOGETHER_BYTES, _TOGETHER_COLUMNS, _TOGETHER_TOKENS = 2**17, 256, 128
#: Bytes of a row of those columns up to which it is the fastest way for any number of tokens.
_TOGETHER_ROW_BYTES = 256
#: All slots are used in place if they have up to this many times the columns of those in use; else these are copied.
_AS_THEY_LIE = 4


def lies_by_rank(matrix: torch.Tensor) -> bool:
    """Return whether one adapter's LoRA B of this size is stored with the outputs of each rank contiguous.

    Then the matrices of several slots form one matrix without a copy. Larger matrices are not multiplied together, and
    transposing them takes longer than reading them.
    """
    return matrix.nbytes <= _TOGETHER_BYTES


def lay_out(stacked: torch.Tensor) -> torch.Tensor:
    """Return LoRA B of all slots, [slots, 1, outputs, rank], in the same memory, in its storage order.

    The contents are scrambled, so no slot may be in use.
    """
    slots, _, outputs, rank = stacked.shape
    return stacked.view(slots, 1, rank, outputs).transpose(2, 3) if lies_by_rank(stacked[0]) else stacked


@dataclass(frozen=True, slots=True)
class _Together:
    """Slots whose matrices are multiplied as one.

    Attributes:
        slots: one slot, or several whose matrices are copied; None: all slots in place.
        rank: rank that each slot contributes.
        columns: columns of all these slots.
        others: [tokens, columns or 1], true where a column belongs to another slot than the token; None if none does.
    """

    slots: int | torch.Tensor | None
    rank: int
    columns: int
    others: torch.Tensor | None


class GroupedPunicaWrapper(PunicaWrapperCPU):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's CPU wrapper with the products of linear layers grouped by slot.

    Args:
        max_rank: rank that slots have room for.
        rank_of: function from an adapter's id to the largest rank among its modules.
        is_finite: predicate whether LoRA B of every slot, used or not, is finite. 0 times infinity is not 0, so a
            cleared column would still reach another adapter's tokens.
    """

    def __init__(
        self,
        max_num_batched_tokens: int,
        max_batches: int,
        device: Any,
        *,
        max_rank: int,
        rank_of: Callable[[int], int],
        is_finite: Callable[[], bool],
    ) -> None:
        super().__init__(max_num_batched_tokens, max_batches, device)
        self._max_rank, self._rank_of, self._is_finite = max_rank, rank_of, is_finite
        #: Tokens with an adapter, sorted by slot; the position of each token in that order; the slots of these tokens,
        #: in batch order if all tokens have an adapter, else sorted. ``_all``: whether all tokens have an adapter.
        self._rows = self._back = self._slots = torch.empty(0, dtype=torch.long)
        self._all = False
        self._groups: list[tuple[int, int, int, int]] = []
        self._rank = 0
        self._together: _Together | None = None

    def update_metadata(self, mapping: Any, lora_index_to_id: list[int | None], *args: Any, **kwargs: Any) -> None:
        """Sort this batch's tokens by slot. Called when the batch or the slots have changed."""
        super().update_metadata(mapping, lora_index_to_id, *args, **kwargs)
        indices = self.token_lora_indices
        order = torch.argsort(indices, stable=True)
        slots, counts = (tensor.tolist() for tensor in torch.unique_consecutive(indices[order], return_counts=True))
        without = counts[0] if slots and slots[0] < 0 else 0
        used, counts = (slots[1:], counts[1:]) if without else (slots, counts)
        ends = list(accumulate(counts))
        ranks = [self._rank_of(lora_index_to_id[slot]) for slot in used]
        # Slot, begin and end of its rows, rank. torch's grouped_mm would visit every slot, in use or not.
        self._groups = list(zip(used, [0, *ends], ends, ranks, strict=False))
        self._rank = max(ranks, default=0)
        self._all = not without
        self._rows = order[without:]
        self._slots = indices if self._all else indices[self._rows]
        self._back = torch.argsort(order) if self._all else order
        self._together = self._taken_together(indices, used, len(lora_index_to_id))

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
            lora_b_stacked: one per slice, [slots, 1, slice, max rank], in the layout of :func:`lay_out`.
            scale: 1; adapters are scaled when they are loaded.
        """
        if not self._groups:
            return
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        start = 0
        for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            self._add(y[:, start : start + width], x, a[:, 0], b[:, 0].transpose(1, 2), scale)
            start += width

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        **_: Any,
    ) -> None:
        """Add each row's ``x @ A.T @ B.T`` to its logits, in place; in float32, as vLLM does it.

        Args:
            y: [rows, vocabulary], one row for each token that is sampled.
            lora_a_stacked: [slots, 1, max rank, hidden size].
            lora_b_stacked: [slots, 1, vocabulary, max rank].

        Raises:
            RuntimeError: the rows are not those of the batch, so their adapters are unknown.
        """
        slots = self.sampler_indices
        if len(slots) != len(x):
            raise RuntimeError(f"The batch has logits of {len(x)} rows, but adapters of {len(slots)} rows.")
        for slot in torch.unique(slots[slots >= 0]).tolist():
            rows = (slots == slot).nonzero().squeeze(1)
            a, b = lora_a_stacked[slot, 0].float(), lora_b_stacked[slot, 0].float()
            added = x.index_select(0, rows).float() @ a.t() @ b.t()
            width = min(added.shape[1], y.shape[1])  # the base's logits may be padded
            y[:, :width].index_add_(0, rows, added[:, :width].to(y.dtype), alpha=scale)

    def _add(self, y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        """Add the products of one slice; ``a`` is [slots, max rank, input size], ``b`` [slots, max rank, slice]."""
        together = self._together
        if together is not None and self._together_is_cheaper(together, len(x), a, b):
            a, b = _matrices(together, a), _matrices(together, b)
            low = x @ a.t()
            if together.others is not None:
                low.masked_fill_(together.others, 0)
            y.addmm_(low, b, alpha=scale)
            return
        a, b = a[:, : self._rank], b[:, : self._rank]
        product = self._token_by_token if self._copying_is_cheaper(a, b) else self._group_by_group
        added = product(x, a, b)
        if self._all:
            y.add_(added, alpha=scale)
        else:
            y.index_add_(0, self._rows, added, alpha=scale)

    def _token_by_token(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Multiply every token by a copy of its matrices. The small factor comes first, or the product is slow."""
        x = x if self._all else x.index_select(0, self._rows)
        low = torch.bmm(x.unsqueeze(1), a.index_select(0, self._slots).transpose(1, 2))
        return torch.bmm(low, b.index_select(0, self._slots)).squeeze(1)

    def _group_by_group(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = x.index_select(0, self._rows)
        added = torch.cat(
            [x[begin:end] @ a[slot, :rank].t() @ b[slot, :rank] for slot, begin, end, rank in self._groups]
        )
        return added.index_select(0, self._back) if self._all else added

    def _taken_together(self, indices: torch.Tensor, used: Sequence[int], slots: int) -> _Together | None:
        """Select the slots of this batch that could form one matrix, and mark the columns of other slots."""
        of_tokens, rank = indices.unsqueeze(1), self._rank
        if len(used) == 1:
            return _Together(used[0], rank, rank, None if self._all else of_tokens != used[0])
        as_they_lie = slots * self._max_rank <= _AS_THEY_LIE * len(used) * rank
        if as_they_lie:
            used, rank = range(slots), self._max_rank
        columns = len(used) * rank
        if not columns or columns > _TOGETHER_COLUMNS:
            return None
        taken = torch.tensor(used)
        others = taken.repeat_interleave(rank) != of_tokens
        return _Together(None if as_they_lie else taken, rank, columns, others)

    def _together_is_cheaper(self, together: _Together, tokens: int, a: torch.Tensor, b: torch.Tensor) -> bool:
        if together.others is None:
            return True
        row = together.columns * a.element_size()
        small = row * (a.shape[2] + b.shape[2]) <= _TOGETHER_BYTES
        few = tokens <= _TOGETHER_TOKENS or row <= _TOGETHER_ROW_BYTES
        return (isinstance(together.slots, int) or (small and few)) and self._is_finite()

    def _copying_is_cheaper(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        copied = len(self._rows) * self._rank * (a.shape[2] + b.shape[2]) * a.element_size()
        return copied <= min(len(self._groups) * _GROUP_BYTES, _ALL_BYTES)


def _matrices(together: _Together, stacked: torch.Tensor) -> torch.Tensor:
    """Select the matrices, [columns, size], from [slots, max rank, size]."""
    if isinstance(together.slots, int):
        return stacked[together.slots, : together.rank]
    if together.slots is None:
        return stacked.reshape(together.columns, -1)
    return stacked[:, : together.rank].index_select(0, together.slots).view(together.columns, -1)
