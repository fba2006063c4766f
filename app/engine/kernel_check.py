"""Compares what the LoRA kernels of a worker compute with plain matrix products in float32.

A kernel that is miscompiled for a card gives fluent nonsense or NaN, some only for long prompts, and no request fails
(vllm#48590, vllm#52568: ``lora_expand`` on compute capability 9.0). So every start asks the kernels themselves: random
adapters are written into slots as real ones are, and each distinct layer is applied to random rows as in a step.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import cycle, islice
from math import sqrt
from types import SimpleNamespace
from typing import Any

import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.layers.logits_processor import LogitsProcessorWithLoRA

from app.engine import slot_weights
from app.engine.kernel_report import Fault, KernelReport

#: Rows of a step: one sequence that generates, many that do, prompts. The most that a step may have are checked too.
TOKENS = (1, 16, 64, 512)
#: Ranks of adapters, of which those below the slots' rank are checked beside that one: a CPU's kernels depend on them.
RANKS = (8, 16, 32, 64, 128, 256)
#: Rows that are compared at a time: of a long step, the reference would take gigabytes otherwise.
_ROWS = 1024
#: The unit roundoff of float32, in which all kernels accumulate.
_FLOAT32_ROUNDOFF = 2.0**-24
#: The rounding error of a sum of n products is below so many times the root of n, in roundoffs of the sum of their
#: sizes, with probability 1 - 2 exp(-18) (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis",
#: SIAM J. Sci. Comput. 2019).
_DEVIATIONS = 6.0
#: For what the reference loses itself.
_MARGIN = 2.0

#: LoRA A and B of one layer, a pair for each slice: [rank, input size] and [slice, rank].
Matrices = list[tuple[torch.Tensor, torch.Tensor]]
#: Lets empty slots stand for adapters, of these ids and this rank: :meth:`app.engine.staging.Stager.occupied`.
Occupied = Callable[[Mapping[int, int], int], AbstractContextManager[None]]


class KernelCheck:
    """The check of one worker, all of whose slots are empty before it and after it.

    Args:
        manager: vLLM's ``LoRAModelManager``.
        occupied: lets slots stand for adapters.
    """

    def __init__(self, manager: Any, occupied: Occupied) -> None:
        self._manager, self._occupied = manager, occupied
        self._chance = torch.Generator(manager.device).manual_seed(1)
        last = manager.lora_slots - 1
        # vLLM's index of a row without an adapter is -1, which is the last slot to a careless kernel (vllm#48421).
        self._ids = {slot: slot + 1 for slot in sorted({0, min(1, last), last})}

    def run(self, *, ranks: Sequence[int] = RANKS, tokens: Sequence[int] = TOKENS) -> KernelReport:
        """Compare until a fault is found.

        Args:
            ranks: those above the slots' rank are left out, and that one is added.
            tokens: those above the most of a step are left out, and that number is added.
        """
        began, layers = time.monotonic(), distinct_layers(self._manager.modules)
        most_rank = int(self._manager.lora_config.max_lora_rank)
        with _exact_products():
            faults = (
                fault
                for rank in sorted({*(rank for rank in ranks if rank < most_rank), most_rank})
                for fault in self._faults(layers, rank, tokens)
            )
            fault = next(faults, None)
            faults.close()
        # The next step is to tell the kernels anew whose rows are whose.
        self._manager._last_mapping = self._manager._last_slot_layout = None
        return KernelReport(time.monotonic() - began, len(layers), fault)

    def _faults(self, layers: Mapping[str, Any], rank: int, tokens: Sequence[int]) -> Iterator[Fault]:
        with self._occupied(self._ids, rank):
            for name, module in layers.items():
                try:
                    adapters = {slot: self._written(module, slot, rank) for slot in self._ids}
                    most = self._most_rows(module)
                    for count in sorted({*(one for one in tokens if one < most), most}):
                        if found := self._worst(module, adapters, count):
                            yield Fault(name, rank, count, *found)
                finally:
                    for slot in self._ids:
                        module.reset_lora(slot)

    def _most_rows(self, module: Any) -> int:
        """Rows of the largest step; the head only has one for each sequence."""
        if isinstance(module, LogitsProcessorWithLoRA):
            return int(self._manager.max_num_seqs)
        return len(module.punica_wrapper._token_lora_indices)

    def _written(self, module: Any, slot: int, rank: int) -> Matrices:
        """Write random matrices into a slot, of a size that keeps rows of about 1 at about 1."""
        matrices = []
        for stacked_a, stacked_b in zip(*_stacked(module), strict=True):
            inputs, outputs = stacked_a.shape[3], stacked_b.shape[2]
            a, b = self._random(rank, inputs, like=stacked_a), self._random(outputs, rank, like=stacked_b)
            matrices.append((a.div_(sqrt(inputs)), b.div_(sqrt(rank))))
        lora_a, lora_b = ([*parts] if len(parts) > 1 else parts[0] for parts in zip(*matrices, strict=True))
        slot_weights.write(module, slot, SimpleNamespace(lora_a=lora_a, lora_b=lora_b))
        return matrices

    def _random(self, *shape: int, like: torch.Tensor) -> torch.Tensor:
        return torch.randn(shape, generator=self._chance, device=like.device).to(like.dtype)

    def _worst(self, module: Any, adapters: Mapping[int, Matrices], count: int) -> tuple[float, float] | None:
        """Error and bound of the element that is furthest beyond it, of a step with so many rows."""
        owners = list(islice(cycle([0, None, *list(adapters)[1:]]), min(count, self._manager.max_num_seqs)))
        rows = [owners[row * len(owners) // count] for row in range(count)]
        ids = tuple(0 if slot is None else self._ids[slot] for slot in rows)
        # As vLLM does for every step; and it knows no more rows of the head than sequences.
        mapping = LoRAMapping(ids, ids[: self._manager.max_num_seqs], is_prefill=True)
        self._manager._set_adapter_mapping(mapping)
        (a, *_), _ = _stacked(module)
        x = self._random(count, a.shape[3], like=a)
        y = self._random(count, sum(b.shape[0] for _, b in adapters[0]), like=a)
        found = _applied(module, x, y.clone())
        slots = torch.tensor([-1 if slot is None else slot for slot in rows], device=x.device)
        worst: tuple[float, float, float] | None = None
        for begin in range(0, count, _ROWS):
            part = slice(begin, begin + _ROWS)
            expected, allowed = _reference(x[part], y[part], slots[part], adapters)
            error = (found[part].float() - expected).abs()
            beyond = torch.where(error <= allowed, 0.0, (error / allowed).nan_to_num(torch.inf, torch.inf))
            most, at = beyond.flatten().max(0)
            if most > 0 and (worst is None or most > worst[0]):
                worst = (float(most), float(error.flatten()[at]), float(allowed.flatten()[at]))
        return None if worst is None else worst[1:]


def distinct_layers(modules: Mapping[str, Any]) -> dict[str, Any]:
    """The first module of each kind and shape, by name: those alike run the same kernels."""
    found: dict[tuple[Any, ...], str] = {}
    for name, module in modules.items():
        if isinstance(module, BaseLinearLayerWithLoRA | LogitsProcessorWithLoRA):
            stacked_a, stacked_b = _stacked(module)
            shapes = tuple(part.shape for part in (*stacked_a, *stacked_b))
            found.setdefault((type(module), stacked_a[0].dtype, shapes), name)
    return {name: modules[name] for name in found.values()}


def _stacked(module: Any) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    """LoRA A and B of all slots, one for each slice; the head has only one."""
    a, b = module.lora_a_stacked, module.lora_b_stacked
    return (a, b) if isinstance(a, tuple) else ((a,), (b,))


def _applied(module: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What the engine makes of a layer's output ``y``, by the calls that a step makes."""
    if isinstance(module, LogitsProcessorWithLoRA):
        module.punica_wrapper.add_lora_logits(y, x, module.lora_a_stacked, module.lora_b_stacked, 1.0)
        return y
    applied: torch.Tensor = module._apply_lora_to_output(x, y)
    return applied


def _reference(
    x: torch.Tensor, y: torch.Tensor, slots: torch.Tensor, adapters: Mapping[int, Matrices]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What plain products give, and by how much a sound kernel may differ from it.

    With u the unit roundoff of the rows' type, ``low`` = x A and ``added`` = low B, a kernel may round ``low`` before B
    meets it (u |low| |B|), round ``added`` and its sum with y (u (2 |added| + |y|)), and accumulates in float32. A row
    without an adapter stays as it is, to the last bit.

    Args:
        x: [rows, input size].
        y: [rows, outputs].
        slots: [rows], -1 for none.
        adapters: what each slot holds.
    """
    roundoff = torch.finfo(x.dtype).eps / 2
    expected, allowed = y.float(), torch.zeros(y.shape, device=y.device)
    for slot, matrices in adapters.items():
        rows = (slots == slot).nonzero().squeeze(1)
        own, begin = x[rows].float(), 0
        for a, b in matrices:
            a, b = a.float().t(), b.float().t()
            part = slice(begin, begin := begin + b.shape[1])
            low = own @ a
            added, before = low @ b, y[rows, part].float().abs()
            sums = own.abs() @ a.abs() @ b.abs()
            accumulated = _DEVIATIONS * sqrt(len(a) + len(b)) * _FLOAT32_ROUNDOFF * sums
            rounded = roundoff * (low.abs() @ b.abs() + 2 * added.abs() + before)
            expected[rows, part] += added
            allowed[rows, part] = _MARGIN * (accumulated + rounded)
    return expected, allowed


@contextmanager
def _exact_products() -> Iterator[None]:
    """Let products of float32 be no less exact, whatever a card could do faster."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
