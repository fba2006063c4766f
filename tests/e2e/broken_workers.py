"""``tenora`` with a defect in the LoRA kernels of its workers: ``python -m tests.e2e.broken_workers serve``."""

import os
from collections.abc import Callable
from typing import Any

import torch

from app.engine import arguments, slot_weights
from app.engine.grouped_lora import GroupedPunicaWrapper
from app.engine.worker import WorkerExtension


def _one_row_off() -> None:
    """A slot's weights are one input, or one output, beside where they belong."""
    fill: Callable[..., None] = slot_weights._fill

    def shifted(slot: torch.Tensor, part: torch.Tensor | None) -> None:
        fill(slot, None if part is None else part.roll(1, 1))

    slot_weights._fill = shifted


def _last_ranks_skipped() -> None:
    """LoRA B is applied without its last eight ranks."""
    add: Callable[..., None] = GroupedPunicaWrapper._add

    def cut(self: Any, y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        b = b.clone()
        b[:, -8:] = 0
        add(self, y, x, a, b, scale)

    GroupedPunicaWrapper._add = cut


def _adapters_swapped() -> None:
    """Rows of the first two slots get each other's matrices."""
    update: Callable[..., None] = GroupedPunicaWrapper.update_metadata

    def swapped(self: Any, mapping: Any, ids: list[int | None], *args: Any, **kwargs: Any) -> None:
        update(self, mapping, [ids[1], ids[0], *ids[2:]], *args, **kwargs)

    GroupedPunicaWrapper.update_metadata = swapped


#: Of the environment: which defect it is.
DEFECT = "BROKEN_KERNELS"
DEFECTS: dict[str, Callable[[], None]] = {
    "one row off": _one_row_off,
    "last ranks skipped": _last_ranks_skipped,
    "adapters swapped": _adapters_swapped,
}


class Broken(WorkerExtension):
    """Its defect is the one that the environment names."""

    def tenora_prepare(self) -> None:
        super().tenora_prepare()
        DEFECTS[os.environ[DEFECT]]()


if __name__ == "__main__":
    from app.cli.root import main

    arguments.WORKER_EXTENSION = "tests.e2e.broken_workers.Broken"
    main()
