"""Check of a worker's LoRA kernels against plain float32 matrix products, at every start of an engine.

A kernel that is miscompiled for a card returns fluent nonsense or NaN, and no request fails (vllm#48590, vllm#52568).
The check writes random adapters into the slots and applies each distinct layer to random rows, with the calls that a
step makes. The tolerance and its derivation: docs/decisions/0001-tolerance-of-the-kernel-check.md.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from math import sqrt
from typing import Any

import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.layers.logits_processor import LogitsProcessorWithLoRA

from app.engine.vllm.kernel_report import Fault, KernelReport

#: Tokens of a step: one decode, a few, many, a prefill. The largest step of the engine is added.
TOKENS = (1, 16, 64, 512)
#: Ranks of adapters. Those up to the rank of the slots are checked: a CPU's kernels depend on them, a GPU's do not.
RANKS = (8, 16, 32, 64, 128, 256)
#: Rows that are compared at a time. The reference of a long step would need gigabytes.
_COMPARED_ROWS = 1024
#: Unit roundoff of float32, in which all kernels accumulate.
_FLOAT32_ROUNDOFF = 2.0**-24
#: Standard deviations in the bound of Higham and Mary (2019) for the rounding error of a sum.
_DEVIATIONS = 6.0
#: Headroom for the rounding errors of the reference itself.
_MARGIN = 2.0

#: LoRA A, [rank, input size], and LoRA B, [slice, rank], of one layer: a pair for each slice.
Matrices = list[tuple[torch.Tensor, torch.Tensor]]
#: Lets empty slots stand for adapters of these ids and this rank: :meth:`.stager.Stager.occupied`.
Occupied = Callable[[Mapping[int, int], int], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class _Step:
    """Input of one layer in one step.

    Attributes:
        x: [tokens, input size].
        y: [tokens, output size], the layer's output before LoRA.
        slots: [tokens], -1 for a row without an adapter.
    """

    x: torch.Tensor
    y: torch.Tensor
    slots: torch.Tensor


class KernelCheck:
    """Kernel check of one worker. Every slot is empty before and after it.

    Args:
        manager: vLLM's ``LoRAModelManager``.
        occupied: lets slots stand for adapters.
    """

    def __init__(self, manager: Any, occupied: Occupied) -> None:
        self._manager, self._occupied = manager, occupied
        self._random_state = torch.Generator(manager.device).manual_seed(1)
        last = manager.lora_slots - 1
        # A row without an adapter has index -1, which a careless kernel takes for the last slot (vllm#48421).
        self._ids = {slot: slot + 1 for slot in sorted({0, min(1, last), last})}

    def run(self, *, ranks: Sequence[int] = RANKS, tokens: Sequence[int] = TOKENS) -> KernelReport:
        """Compare until the first fault.

        Args:
            ranks: those above the rank of the slots are left out, and the rank of the slots is added.
            tokens: those above the engine's largest step are left out, and the largest step is added.
        """
        began, layers = time.monotonic(), distinct_layers(self._manager.modules)
        slot_rank = int(self._manager.lora_config.max_lora_rank)
        with _exact_products():
            faults = (
                fault
                for rank in sorted({*(rank for rank in ranks if rank < slot_rank), slot_rank})
                for fault in self._faults(layers, rank, tokens)
            )
            fault = next(faults, None)
            faults.close()
        # vLLM must set the adapters of the next step again.
        self._manager._last_mapping = self._manager._last_slot_layout = None
        return KernelReport(time.monotonic() - began, len(layers), fault)

    def _faults(self, layers: Mapping[str, Any], rank: int, tokens: Sequence[int]) -> Iterator[Fault]:
        with self._occupied(self._ids, rank):
            for name, module in layers.items():
                try:
                    adapters = {slot: self._write_adapter(module, slot, rank) for slot in self._ids}
                    largest = self._largest_step(module)
                    for count in sorted({*(count for count in tokens if count < largest), largest}):
                        if excess := self._largest_excess(module, adapters, count):
                            yield Fault(name, rank, count, *excess)
                finally:
                    for slot in self._ids:
                        module.reset_lora(slot)

    def _largest_step(self, module: Any) -> int:
        """Rows of the largest step. The head has one row for each sequence."""
        if isinstance(module, LogitsProcessorWithLoRA):
            return int(self._manager.max_num_seqs)
        return len(module.punica_wrapper._token_lora_indices)

    def _write_adapter(self, module: Any, slot: int, rank: int) -> Matrices:
        """Write random matrices into a slot. They are scaled to keep rows of size 1 at size 1."""
        matrices = []
        for stacked_a, stacked_b in zip(*_stacked(module), strict=True):
            inputs, outputs = stacked_a.shape[3], stacked_b.shape[2]
            a, b = self._random(rank, inputs, like=stacked_a), self._random(outputs, rank, like=stacked_b)
            matrices.append((a.div_(sqrt(inputs)), b.div_(sqrt(rank))))
        lora_a, lora_b = ([*parts] if len(parts) > 1 else parts[0] for parts in zip(*matrices, strict=True))
        module.set_lora(slot, lora_a, lora_b)
        return matrices

    def _random(self, *shape: int, like: torch.Tensor) -> torch.Tensor:
        return torch.randn(shape, generator=self._random_state, device=like.device).to(like.dtype)

    def _largest_excess(self, module: Any, adapters: Mapping[int, Matrices], count: int) -> tuple[float, float] | None:
        """Error and bound of the element that exceeds its bound most, in a step of ``count`` tokens."""
        step = self._step(module, adapters, count)
        output = _apply(module, step.x, step.y.clone())
        largest: tuple[float, float, float] | None = None
        for begin in range(0, count, _COMPARED_ROWS):
            rows = slice(begin, begin + _COMPARED_ROWS)
            expected, bound = _reference(_Step(step.x[rows], step.y[rows], step.slots[rows]), adapters)
            error = (output[rows].float() - expected).abs()
            # NaN is neither above nor below a bound.
            excess = torch.where(error <= bound, 0.0, (error / bound).nan_to_num(torch.inf, torch.inf))
            value, place = excess.flatten().max(0)
            if value > 0 and (largest is None or value > largest[0]):
                largest = (float(value), float(error.flatten()[place]), float(bound.flatten()[place]))
        return None if largest is None else largest[1:]

    def _step(self, module: Any, adapters: Mapping[int, Matrices], count: int) -> _Step:
        """Random rows, those of each adapter and those without one in turn; vLLM's kernels know whose they are."""
        owners = list(islice(cycle([0, None, *list(adapters)[1:]]), min(count, self._manager.max_num_seqs)))
        rows = [owners[row * len(owners) // count] for row in range(count)]
        ids = tuple(0 if slot is None else self._ids[slot] for slot in rows)
        # As for a real step, with at most one row of the head for each sequence.
        mapping = LoRAMapping(ids, ids[: self._manager.max_num_seqs], is_prefill=True)
        self._manager._set_adapter_mapping(mapping)
        (a, *_), _ = _stacked(module)
        x = self._random(count, a.shape[3], like=a)
        y = self._random(count, sum(b.shape[0] for _, b in adapters[0]), like=a)
        return _Step(x, y, torch.tensor([-1 if slot is None else slot for slot in rows], device=x.device))


def distinct_layers(modules: Mapping[str, Any]) -> dict[str, Any]:
    """First module of each kind and shape, by name. Modules of the same shape run the same kernels."""
    names: dict[tuple[Any, ...], str] = {}
    for name, module in modules.items():
        if isinstance(module, BaseLinearLayerWithLoRA | LogitsProcessorWithLoRA):
            stacked_a, stacked_b = _stacked(module)
            shapes = tuple(part.shape for part in (*stacked_a, *stacked_b))
            names.setdefault((type(module), stacked_a[0].dtype, shapes), name)
    return {name: modules[name] for name in names.values()}


def _stacked(module: Any) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    """LoRA A and B of all slots, one tensor for each slice. The head has one slice."""
    a, b = module.lora_a_stacked, module.lora_b_stacked
    return (a, b) if isinstance(a, tuple) else ((a,), (b,))


def _apply(module: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Apply LoRA to a layer's output ``y`` with the calls that a step makes."""
    if isinstance(module, LogitsProcessorWithLoRA):
        module.punica_wrapper.add_lora_logits(y, x, module.lora_a_stacked, module.lora_b_stacked, 1.0)
        return y
    output: torch.Tensor = module._apply_lora_to_output(x, y)
    return output


def _reference(step: _Step, adapters: Mapping[int, Matrices]) -> tuple[torch.Tensor, torch.Tensor]:
    """Output of plain products in float32, and the bound of each element's error.

    With u the unit roundoff of the rows' type, ``low`` = x A and ``added`` = low B, a sound kernel

    - accumulates in float32: 6 sqrt(n) 2^-24 of the sum of the products' sizes, for n products;
    - may round ``low`` before it meets B: u |low| |B|;
    - may round ``added``, and rounds its sum with y: u (2 |added| + |y|).

    The bound of a row without an adapter is 0.
    """
    roundoff = torch.finfo(step.x.dtype).eps / 2
    expected, bound = step.y.float(), torch.zeros(step.y.shape, device=step.y.device)
    for slot, matrices in adapters.items():
        rows = (step.slots == slot).nonzero().squeeze(1)
        x, begin = step.x[rows].float(), 0
        for lora_a, lora_b in matrices:
            a, b = lora_a.float().t(), lora_b.float().t()
            part = slice(begin, begin := begin + b.shape[1])
            low = x @ a
            added, before = low @ b, step.y[rows, part].float().abs()
            sizes = x.abs() @ a.abs() @ b.abs()
            accumulated = _DEVIATIONS * sqrt(len(a) + len(b)) * _FLOAT32_ROUNDOFF * sizes
            rounded = roundoff * (low.abs() @ b.abs() + 2 * added.abs() + before)
            expected[rows, part] += added
            bound[rows, part] = _MARGIN * (accumulated + rounded)
    return expected, bound


@contextmanager
def _exact_products() -> Iterator[None]:
    """Keep a card from computing float32 products of the reference in TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
