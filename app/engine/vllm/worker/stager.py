"""Stager inside a vLLM worker: reads adapters during the steps, and copies them into slots between the steps.

vLLM's ``add_lora`` reads a file, casts it, packs it and copies it into a slot in one call. The call runs in the loop of
the steps, so every stream waits. Here a low-priority thread does everything but the copy. The copy is cut into pieces
short enough for the gap between two steps. vLLM's tables of adapters, in its LoRA manager, change only after the last
piece. See docs/decisions/0016-stage-during-steps-copy-between-them.md.
"""

import logging
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from vllm.lora.lora_model import LoRAModel
from vllm.lora.request import LoRARequest
from vllm.utils.torch_utils import PIN_MEMORY

from adapters.geometry import HEAD_MODULE
from adapters.modules import is_full_name
from adapters.weights import WEIGHTS_FILE
from app.engine.vllm.worker import staged_weights
from app.engine.vllm.worker.cpu_lora import lies_by_rank
from app.engine.vllm.worker.malloc_trim import MallocTrim

logger = logging.getLogger(__name__)

_THREADS = 2
#: Added to the niceness of the process for staging threads: a third of the CPU share of its other threads.
_NICENESS = 5
_LOWEST = 19
#: On a CPU, a staging thread sleeps for ``_REST_S`` seconds after ``_REST_BYTES`` bytes. Threads that serve the steps
#: may share its core, and would otherwise wait for the end of its time slice. On a GPU there are no rests.
_REST_BYTES, _REST_S = 2**21, 2e-4
#: Bytes of one read of a file, followed by the same rest.
_PIECE_BYTES = 2**22
#: Fraction by which a copy may exceed its budget if that finishes it. Another step would delay its waiters much more.
_OVER = 0.5

#: Part of the names that PEFT gives to LoRA B.
_LORA_B = ".lora_B."


class Stager:
    """Staged and placed adapters of one worker.

    Staging threads only read adapters. Everything else runs in the worker's own thread, between steps.

    Args:
        workers: vLLM's ``LRUCacheWorkerLoRAManager``.
        patches: optional patches that apply.
    """

    def __init__(self, workers: Any, patches: Collection[str]) -> None:
        self._workers, self._manager = workers, workers._adapter_manager
        workers._lora_model_cls = Copied
        processors = _processors()
        self._threads = ThreadPoolExecutor(
            min(_THREADS, len(processors)), "tenora-stage", initializer=_step_back, initargs=(processors,)
        )
        self._staged: dict[int, Future[LoRAModel]] = {}
        self._unreported: set[int] = set()
        self._copies: dict[int, Iterator[int]] = {}
        self._ranks: dict[int, int] = {}
        #: Slots whose LoRA B may hold NaN or infinity.
        self._not_finite: set[int] = set()
        self._malloc_trim = MallocTrim() if "malloc_trim" in patches else None

    def stage(self, version_id: int, name: str, path: str, evict: list[int]) -> None:
        """Start to stage a version in host memory, once per version. :meth:`finished` reports its end.

        Args:
            evict: versions whose staged copies are dropped first.
        """
        for other in evict:
            self.unstage(other)
        request = LoRARequest(lora_name=name, lora_int_id=version_id, lora_path=path)
        self._staged[version_id] = self._threads.submit(self._read, request)
        self._unreported.add(version_id)

    def finished(self) -> list[tuple[int, int, str]]:
        """Return the stagings that ended since the last call: version id, bytes, and the error or ""."""
        done = [version_id for version_id in self._unreported if self._staged[version_id].done()]
        self._unreported.difference_update(done)
        return [self._outcome(version_id) for version_id in done]

    def unstage(self, version_id: int) -> None:
        """Drop a version's staged copy; one that is under way is dropped when it ends. Its slot stays."""
        self._unreported.discard(version_id)
        if staged := self._staged.pop(version_id, None):
            staged.cancel()

    def change_slots(self, changes: list[tuple[int | None, list[int]]], budget_s: float) -> list[str]:
        """Make slot changes in order, for about ``budget_s`` seconds. The caller repeats those that did not end.

        Args:
            changes: for each change, the staged version to copy into a slot, or None, and the versions whose slots
                are freed first. Versions without a slot are ignored, and so is a version that was copied already.

        Returns:
            For each change that has ended, "" or the error. After an error nothing of the version is in a slot.
        """
        ends, outcomes = time.monotonic() + budget_s, list[str]()
        for version_id, leaving in changes:
            for other in leaving:
                self.take_out(other)
            try:
                if version_id is not None and not self._place(version_id, ends, _OVER * budget_s):
                    break
            except Exception as error:  # noqa: BLE001 - returned, as the other changes are independent of it
                self.take_out(version_id or 0)
                outcomes.append(f"{type(error).__name__}: {error}")
            else:
                outcomes.append("")
            if time.monotonic() >= ends:
                break
        return outcomes

    def take_out(self, version_id: int) -> None:
        """Free a version's slot, copied or half copied. A version without a slot is ignored."""
        self._copies.pop(version_id, None)
        self._ranks.pop(version_id, None)
        self._manager.remove_adapter(version_id)
        table = self._manager.lora_index_to_id
        if version_id in table:
            table[table.index(version_id)] = None

    @contextmanager
    def occupied(self, ids: Mapping[int, int], rank: int) -> Iterator[None]:
        """Let empty slots stand for adapters inside this block. Nothing is written into the slots.

        Args:
            ids: id of the adapter for each slot.
            rank: rank of all these adapters.
        """
        for slot, version_id in ids.items():
            self._manager.lora_index_to_id[slot] = version_id
            self._ranks[version_id] = rank
        try:
            yield
        finally:
            for version_id in ids.values():
                self.take_out(version_id)

    def rank_of(self, version_id: int | None) -> int:
        """Return the largest rank among the modules of a version that has a slot; 0 for None."""
        return self._ranks[version_id] if version_id else 0

    def is_finite(self) -> bool:
        """Return whether LoRA B of every slot, used or not, is known to be finite."""
        return not self._not_finite

    def _place(self, version_id: int, ends: float, over_s: float) -> bool:
        """Copy a version, or the next part of it, into a slot. Return whether the copy is complete.

        Args:
            ends: monotonic time at which the copy pauses, unless ``over_s`` more seconds should finish it.
            over_s: seconds by which it may exceed ``ends``.
        """
        if version_id in self._manager._active_adapters:
            return True  # this worker was faster than another
        if version_id not in self._copies:
            self._copies[version_id] = self._copy(self._staged[version_id].result(timeout=0))
        began = time.monotonic()
        for copied, left in enumerate(self._copies[version_id], 1):
            now = time.monotonic()
            if now >= ends and (now - began) / copied * left > over_s:
                return False
        del self._copies[version_id]
        return True

    def _outcome(self, version_id: int) -> tuple[int, int, str]:
        error = self._staged[version_id].exception()
        if error is None:
            return version_id, staged_weights.size_of(self._staged[version_id].result()), ""
        del self._staged[version_id]
        logger.error("Version %d could not be staged.", version_id, exc_info=error)
        return version_id, 0, f"{type(error).__name__}: {error}"

    def _read(self, request: LoRARequest) -> LoRAModel:
        _read_through(Path(request.lora_path) / WEIGHTS_FILE)
        lora = self._workers._load_adapter(request)
        if HEAD_MODULE in lora.loras and HEAD_MODULE not in self._manager.modules:
            # vLLM would ignore the head without an error.
            raise RuntimeError(f"The slots of this engine have no room for {HEAD_MODULE}.")
        self._manager._create_merged_loras_inplace(lora)
        lora.is_finite = not PIN_MEMORY and staged_weights.is_finite(lora)  # used on a CPU only
        if self._malloc_trim:
            self._malloc_trim.trim()
        return lora

    def _copy(self, lora: LoRAModel) -> Iterator[int]:
        """Run vLLM's ``activate_adapter`` module by module, yielding the number of modules left."""
        index = self._manager.lora_index_to_id.index(None)
        self._manager.lora_index_to_id[index] = lora.id
        if not lora.is_finite:
            self._not_finite.add(index)
        modules = self._manager.modules
        for left, (name, module) in zip(range(len(modules) - 1, -1, -1), modules.items(), strict=True):
            if layer := self._manager._get_lora_layer_weights(lora, name):
                module.set_lora(index, layer.lora_a, layer.lora_b)
            else:
                module.reset_lora(index)
            yield left
        if lora.is_finite:
            # Only now, as the copy may be abandoned half-way.
            self._not_finite.discard(index)
        self._ranks[lora.id] = staged_weights.largest_rank(lora)
        self._manager._registered_adapters[lora.id] = Placed(lora.id, lora.rank, {})
        self._manager._active_adapters[lora.id] = None


class Copied(LoRAModel):  # type: ignore[misc]  # vLLM ships no types
    """Adapter in its own host memory, in the dtype of the slots.

    vLLM's adapter has views of the mapped file. They are read, and copied page by page, when a tensor is first used or
    scaled. If vLLM pins what it reads, it copies by itself.

    Attributes:
        is_finite: whether its LoRA B is known to be finite. Uploads are finite, but may overflow the dtype.
    """

    is_finite = False

    @classmethod
    def from_lora_tensors(
        cls,
        lora_model_id: int,
        tensors: Mapping[str, torch.Tensor],
        peft_helper: Any,
        *args: Any,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> LoRAModel:
        copies, unrested = dict[str, torch.Tensor](), 0
        for name, tensor in tensors.items():
            copies[name] = tensor.to(dtype=dtype) if PIN_MEMORY else _copied(name, tensor, dtype)
            unrested += tensor.nbytes
            if unrested >= _REST_BYTES:
                _rest()
                unrested = 0
        look_up_full_names(peft_helper)
        return super().from_lora_tensors(lora_model_id, copies, peft_helper, *args, dtype=dtype, **kwargs)


class Placed(LoRAModel):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's entry of an adapter that has a slot, without weights, as the slot has them.

    vLLM asks for weights only to copy them into a slot by its own choice. It never gets that choice. If it took it, a
    dead engine would be better than one that answers with an empty adapter.
    """

    def get_lora(self, module_name: str) -> Any:
        raise RuntimeError(f"vLLM must not activate adapter {self.id} by itself ({module_name}).")


def look_up_full_names(helper: Any) -> None:
    """Make vLLM's ``PEFTHelper`` look up patterns that are full names of modules, instead of matching them.

    Such a pattern matches the module of this name and no other. vLLM would compile each pattern for each module, which
    takes minutes for a large model with a pattern for each layer.
    """
    if all(map(is_full_name, (*helper.rank_pattern, *helper.alpha_pattern))):
        helper._match_pattern = _look_up


def _look_up(pattern: Mapping[str, Any], name: str) -> Any:
    return pattern.get(name)


def _step_back(processors: set[int]) -> None:
    """Yield to the threads that run the steps: lower priority, other cores. Linux keeps both for each thread."""
    torch.set_num_threads(1)
    thread = threading.get_native_id()
    # Added, because only root may lower the niceness of a process that was started with a higher one.
    os.setpriority(os.PRIO_PROCESS, thread, min(os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS, _LOWEST))
    os.sched_setaffinity(thread, processors)


def _processors() -> set[int]:
    """Cores that no thread of this process is bound to; all cores of the parent if there are none.

    The threads of a CPU worker are each bound to a core, and one core is kept free of them. On one of their cores,
    staging would be slow, and would hold the interpreter's lock while it waits for its turn.
    """
    everywhere, bound = os.sched_getaffinity(os.getppid()), set[int]()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # the thread has ended meanwhile
            its_own = os.sched_getaffinity(int(thread.name))
            bound |= its_own if its_own < everywhere else set()
    return everywhere - bound or everywhere


def _read_through(file: Path) -> None:
    """Read a file into the page cache. safetensors touches mapped pages with the interpreter's lock held.

    Otherwise a concurrent step would wait for the disk.
    """
    piece = bytearray(_PIECE_BYTES)
    with file.open("rb", buffering=0) as opened:
        while opened.readinto(piece):
            _rest()


def _rest() -> None:
    if not PIN_MEMORY:  # otherwise the steps run on a GPU
        time.sleep(_REST_S)


def _copied(name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Copy a tensor, with the memory layout of a CPU's slots."""
    copy = tensor.to(dtype=dtype, copy=True)
    return copy.t().contiguous().t() if _LORA_B in name and lies_by_rank(copy) else copy
