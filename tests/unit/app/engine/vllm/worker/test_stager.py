"""Stager: load an adapter from a file into host memory and a slot; memory layout and non-finite values."""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest

from app.engine.vllm.patches.ledger import OPTIONAL
from app.engine.vllm.worker.cpu_lora import lay_out
from app.engine.vllm.worker.stager import Stager, _step_back

SLOTS, RANK, SIZE = 2, 4, 6
NAMES = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(3)]
#: An upload may contain this value, but half precision cannot represent it.
TOO_LARGE = 1e5


class Module:
    """Fake of vLLM's wrapped layer, with the attributes that :meth:`Stager._copy` uses."""

    def __init__(self) -> None:
        self.a = torch.zeros(SLOTS, 1, RANK, SIZE, dtype=torch.float16)
        self.b = lay_out(torch.zeros(SLOTS, 1, SIZE, RANK, dtype=torch.float16))

    def reset_lora(self, index: int) -> None:
        self.a[index] = self.b[index] = 0

    def set_lora(self, index: int, lora_a: torch.Tensor, lora_b: torch.Tensor) -> None:
        self.reset_lora(index)
        self.a[index, 0, : lora_a.shape[0], : lora_a.shape[1]].copy_(lora_a)
        self.b[index, 0, : lora_b.shape[0], : lora_b.shape[1]].copy_(lora_b)


class Manager:
    """Fake of vLLM's LoRA managers without a model."""

    _lora_model_cls = LoRAModel

    def __init__(self) -> None:
        self._adapter_manager = self
        self.lora_index_to_id: list[int | None] = [None] * SLOTS
        self.modules = {name: Module() for name in NAMES}
        self._registered_adapters: dict[int, Any] = {}
        self._active_adapters: OrderedDict[int, None] = OrderedDict()

    def _create_merged_loras_inplace(self, lora: LoRAModel) -> None:
        """Scale LoRA B, as vLLM does here; this model has no merged layers."""
        for layer in lora.loras.values():
            layer.optimize()

    def _load_adapter(self, request: LoRARequest) -> LoRAModel:
        helper = PEFTHelper(r=RANK, lora_alpha=2 * RANK, target_modules=["q_proj"])
        return self._lora_model_cls.from_local_checkpoint(
            request.lora_path,
            {"q_proj"},
            helper,
            lora_model_id=request.lora_int_id,
            device="cpu",
            dtype=torch.float16,
            model_vocab_size=32,
        )

    def _get_lora_layer_weights(self, lora: LoRAModel, name: str) -> Any:
        return lora.get_lora(name)

    def remove_adapter(self, version_id: int) -> None:
        self._registered_adapters.pop(version_id, None)
        if version_id in self._active_adapters:
            del self._active_adapters[version_id]
            self.lora_index_to_id[self.lora_index_to_id.index(version_id)] = None


class Worker(SimpleNamespace):
    """Stager with helpers that write adapters and stage them."""

    folder: Path
    stager: Stager
    manager: Manager

    def stage(self, version_id: int, value: float) -> None:
        """Stage an adapter with this value in LoRA B of its last layer, and small values elsewhere."""
        path = self.folder / str(version_id)
        path.mkdir()
        tensors = {}
        for name in NAMES:
            tensors[f"base_model.model.{name}.lora_A.weight"] = torch.ones(RANK, SIZE)
            tensors[f"base_model.model.{name}.lora_B.weight"] = torch.arange(SIZE * RANK).reshape(SIZE, RANK) / 8
        tensors[f"base_model.model.{NAMES[-1]}.lora_B.weight"][0, 0] = value
        save_file(tensors, path / "adapter_model.safetensors")
        self.stager.stage(version_id, str(version_id), str(path), [])
        deadline = time.monotonic() + 30
        while not (ended := self.stager.finished()):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert [(number, error) for number, _, error in ended] == [(version_id, "")]

    def place(self, version_id: int, leaving: int | None = None, *, budget_s: float = 60.0) -> list[str]:
        return self.stager.change_slots([(version_id, [] if leaving is None else [leaving])], budget_s)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    manager = Manager()
    worker = Worker(folder=tmp_path, stager=Stager(manager, OPTIONAL), manager=manager)
    yield worker
    worker.stager._threads.shutdown()


def test_a_slot_has_the_weights_of_the_file(worker: Worker) -> None:
    worker.stage(7, 0.5)
    staged = worker.stager._staged[7].result()
    assert worker.place(7) == [""]
    for name, module in worker.manager.modules.items():
        layer, slot = staged.get_lora(name), module.b[0, 0]
        expected = torch.arange(SIZE * RANK, dtype=torch.float16).reshape(SIZE, RANK) / 8 * 2
        if name == NAMES[-1]:
            expected[0, 0] = 1.0
        assert torch.equal(slot, expected)
        # Both sides have the same contiguous layout: a transposing copy between two steps would take several times
        # as long.
        assert layer.lora_b.stride() == slot.stride() == (1, SIZE)


def test_overflow_is_known_until_the_slot_changes(worker: Worker) -> None:
    for version_id, value in ((1, 0.5), (2, TOO_LARGE), (3, 0.5)):
        worker.stage(version_id, value)
    assert worker.place(1) == [""]
    assert worker.stager.is_finite()
    assert worker.place(2) == [""]
    assert not worker.stager.is_finite()
    worker.stager.take_out(2)
    assert not worker.stager.is_finite(), "the slot is free, and holds what it held"
    assert worker.place(3) == [""]
    assert worker.stager.is_finite()


def test_a_copy_that_is_given_up_half_way_leaves_both(worker: Worker) -> None:
    for version_id, value in ((1, TOO_LARGE), (2, 0.5), (3, 0.5)):
        worker.stage(version_id, value)
    # With a budget of 0, a copy pauses after its first module.
    assert worker.place(1, budget_s=0) == []
    assert not worker.stager.is_finite()
    worker.stager.take_out(1)
    assert worker.place(2, budget_s=0) == []
    assert not worker.stager.is_finite()
    worker.stager.take_out(2)
    assert not worker.stager.is_finite()
    assert worker.place(3) == [""]
    assert worker.stager.is_finite()


@pytest.mark.parametrize(("budget_s", "whole"), [(3, False), (4, False), (5, True)])
def test_a_copy_does_not_pause_where_little_is_left(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, budget_s: float, whole: bool
) -> None:
    """Each of six modules takes a second. After four, half of the 5 s budget suffices for the other two."""
    for number in range(len(NAMES), 6):
        worker.manager.modules[f"model.layers.{number}.self_attn.q_proj"] = Module()
    worker.stage(1, 0.5)
    clock = SimpleNamespace(now=0.0)

    def tick() -> float:
        clock.now += 1.0
        return clock.now

    monkeypatch.setattr(time, "monotonic", tick)
    assert worker.place(1, budget_s=budget_s) == ([""] if whole else [])


@pytest.mark.parametrize(("niceness", "expected"), [(3, 8), (19, 19)])
def test_a_staging_thread_never_lowers_its_niceness(niceness: int, expected: int) -> None:
    """Only root may lower it: the threads of a server below ``nice -n 19`` would end."""

    def step_back() -> int:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
        _step_back(os.sched_getaffinity(thread))
        return os.getpriority(os.PRIO_PROCESS, thread)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(step_back).result() == expected
