"""``python -m tests.support.broken_kernels BASE``: check the kernels of a real engine, sound and with each defect.

Prints JSON: name of a defect, or "none", -> its kernel report, and whether every slot was empty afterwards.
"""

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from vllm.lora.layers.column_parallel_linear import MergedColumnParallelLinearWithLoRA as MergedLayer
from vllm.v1.engine.llm_engine import LLMEngine

from app.engine.vllm.one_layer_engine import check_kernels, one_layer_engine
from app.engine.vllm.worker.cpu_lora import GroupedPunicaWrapper

SOUND = "none"
RANK, TOKENS = 16, 600

_set_lora = MergedLayer.set_lora
_add = GroupedPunicaWrapper._add
_update_metadata = GroupedPunicaWrapper.update_metadata


def _shifted(self: Any, index: int, lora_a: list[torch.Tensor], lora_b: list[torch.Tensor]) -> None:
    _set_lora(self, index, lora_a, [part.roll(1, 0) for part in lora_b])


def _without_last_ranks(
    self: Any, y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float
) -> None:
    b = b.clone()
    b[:, -8:] = 0
    _add(self, y, x, a, b, scale)


def _swapped(self: Any, mapping: Any, ids: list[int | None], *args: Any, **kwargs: Any) -> None:
    """Apply each of the first two slots' rows to the other slot's matrices."""
    _update_metadata(self, mapping, [ids[1], ids[0], *ids[2:]], *args, **kwargs)


#: Defect of the worker -> context manager that injects it.
DEFECTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a stacked weight is off by one row": lambda: patch.object(MergedLayer, "set_lora", _shifted),
    "expand skips the last 8 ranks": lambda: patch.object(GroupedPunicaWrapper, "_add", _without_last_ranks),
    "rows of two adapters are swapped": lambda: patch.object(GroupedPunicaWrapper, "update_metadata", _swapped),
}


def slots_are_empty(started: LLMEngine) -> bool:
    [manager] = started.collective_rpc(lambda worker: worker.model_runner.lora_manager._adapter_manager)
    stacks = [
        part
        for layer in manager.modules.values()
        for stack in (layer.lora_a_stacked, layer.lora_b_stacked)
        for part in (stack if isinstance(stack, tuple) else (stack,))
    ]
    return not any(part.any() for part in stacks) and set(manager.lora_index_to_id) == {None}


def main() -> None:
    base = Path(sys.argv[1])
    results: dict[str, Any] = {}
    with one_layer_engine(base, RANK, dtype="bfloat16", tokens=TOKENS) as started:
        for defect in (SOUND, *DEFECTS, SOUND):
            if defect == SOUND:
                report = check_kernels(started)
            else:
                with DEFECTS[defect]():
                    report = check_kernels(started)
            results[defect] = report.plain() | {"empty": slots_are_empty(started)}
    print(json.dumps(results))  # noqa: T201


if __name__ == "__main__":
    main()
