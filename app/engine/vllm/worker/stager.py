"""Adapters on their way into a slot, inside a worker of vLLM: read beside the steps, copied between them.

vLLM's ``add_lora`` reads a file, casts it, packs it and copies it into a slot in one go, in the loop that runs the
steps: every stream waits. Here a thread of low priority does all but the copy, and the copy is cut into pieces short
enough to pass between two steps. What vLLM itself knows of an adapter (the tables of its LoRA manager) changes only
when the last piece is there.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
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
from app.engine.vllm.worker import slot_weights
from app.engine.vllm.worker.cpu_lora import lies_by_rank
from app.engine.vllm.worker.malloc_trim import Freed

logger = logging.getLogger(__name__)

_THREADS = 2
#: What these threads leave to the steps, in the scheduler's units: a third of the share of a thread at 0.
_NICENESS = 5
#: Where a CPU runs the steps, these threads rest after every so many bytes, for so long: whoever serves the steps may
#: have no other core than theirs, and who wakes there waits for the end of a time slice otherwise. After every quarter
#: of a MiB, as it was while a step passed through two processes, 40 MB took 95 ms instead of 60, and streams noticed as
#: much of it (one run each). Where a GPU runs the steps nothing was won by any rest.
_REST_BYTES, _REST_S = 2**21, 2e-4
#: A file is read in pieces of so many bytes before that, with the same rests.
_PIECE_BYTES = 2**22
#: A copy goes on for so much of its budget more where that should suffice: another step costs whoever waits much more.
_OVER = 0.5

#: In the names of what PEFT writes.
_LORA_B = ".lora_B."


class Stager:
    """The adapters of one worker.

    All but the threads' work happens in the worker's own thread, between steps.

    Args:
        workers: vLLM's ``LRUCacheWorkerLoRAManager``.
    """

    def __init__(self, workers: Any) -> None:
        self._workers, self._manager = workers, workers._adapter_manager
        workers._lora_model_cls = Copied
        self._apply = workers._apply_adapters
        workers._apply_adapters = self._apply_adapters
        processors = _processors()
        self._threads = ThreadPoolExecutor(
            min(_THREADS, len(processors)), "tenora-stage", initializer=_step_back, initargs=(processors,)
        )
        self._staged: dict[int, Future[LoRAModel]] = {}
        self._unreported: set[int] = set()
        self._copies: dict[int, Iterator[int]] = {}
        self._ranks: dict[int, int] = {}
        #: Slots whose LoRA B may hold more than finite numbers.
        self._not_finite: set[int] = set()
        self._freed = Freed()

    def stage(self, version_id: int, name: str, path: str, evict: list[int]) -> None:
        """Begin to bring a version into host memory; :meth:`finished` says when it is there. Once per version.

        Args:
            evict: versions whose copies there are dropped first.
        """
        for other in evict:
            self.unstage(other)
        request = LoRARequest(lora_name=name, lora_int_id=version_id, lora_path=path)
        self._staged[version_id] = self._threads.submit(self._read, request)
        self._unreported.add(version_id)

    def finished(self) -> list[tuple[int, int, str]]:
        """The stagings that ended since the last call: version id, bytes, and what went wrong or ""."""
        done = [version_id for version_id in self._unreported if self._staged[version_id].done()]
        self._unreported.difference_update(done)
        return [self._outcome(version_id) for version_id in done]

    def unstage(self, version_id: int) -> None:
        """Forget a version's copy in host memory; one under way is dropped when it ends. Its slot stays."""
        self._unreported.discard(version_id)
        if staged := self._staged.pop(version_id, None):
            staged.cancel()

    def change_slots(self, changes: list[tuple[int | None, list[int]]], budget_s: float) -> list[str]:
        """Make changes one after another for about so many seconds; what is not done by then is to be asked for again.

        Args:
            changes: for each, the staged version that is copied into a slot, or None, and the versions whose slots
                are given up first; those without one are no error, nor is a version that has been copied already.

        Returns:
            For each change that has ended, "" or what went wrong: then nothing of the version is in a slot.
        """
        ends, outcomes = time.monotonic() + budget_s, list[str]()
        for version_id, leaving in changes:
            for other in leaving:
                self.take_out(other)
            try:
                if version_id is not None and not self._place(version_id, ends, _OVER * budget_s):
                    break
            except Exception as error:  # noqa: BLE001 - it is told, and the other changes have nothing to do with it
                self.take_out(version_id or 0)
                outcomes.append(f"{type(error).__name__}: {error}")
            else:
                outcomes.append("")
            if time.monotonic() >= ends:
                break
        return outcomes

    def take_out(self, version_id: int) -> None:
        """Free a version's slot, copied or half copied; one without a slot is no error."""
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
            ids: slot -> id of its adapter.
            rank: of all these adapters.
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
        """The largest rank among the modules of a version that has a slot; 0 for none."""
        return self._ranks[version_id] if version_id else 0

    def is_finite(self) -> bool:
        """Whether every slot's LoRA B, used or not, is known to hold finite numbers."""
        return not self._not_finite

    def _apply_adapters(self, requests: set[LoRARequest | None]) -> None:
        """vLLM's, called for every step, which copies its table of all adapters once for each that the step uses."""
        active = self._manager._active_adapters
        if not all(request.lora_int_id in active for request in requests if request):
            self._apply(requests)

    def _place(self, version_id: int, ends: float, over_s: float) -> bool:
        """Copy a version into a slot, or a part of it; whether it is there.

        Args:
            ends: when the copy is to pause, unless ``over_s`` more should suffice for all that is left.
        """
        if version_id in self._manager._active_adapters:
            return True  # this worker was quicker than another
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
            return version_id, slot_weights.size_of(self._staged[version_id].result()), ""
        del self._staged[version_id]
        logger.error("version %d could not be staged", version_id, exc_info=error)
        return version_id, 0, f"{type(error).__name__}: {error}"

    def _read(self, request: LoRARequest) -> LoRAModel:
        _read_through(Path(request.lora_path) / WEIGHTS_FILE)
        lora = self._workers._load_adapter(request)
        if HEAD_MODULE in lora.loras and HEAD_MODULE not in self._manager.modules:
            # vLLM would leave the head out without a word.
            raise RuntimeError(f"this engine has no room for {HEAD_MODULE} in its slots")
        self._manager._create_merged_loras_inplace(lora)
        lora.is_finite = not PIN_MEMORY and slot_weights.is_finite(lora)  # only a CPU asks
        self._freed.give_back()
        return lora

    def _copy(self, lora: LoRAModel) -> Iterator[int]:
        """vLLM's ``activate_adapter`` module by module; yields how many are left."""
        index = self._manager.lora_index_to_id.index(None)
        self._manager.lora_index_to_id[index] = lora.id
        if not lora.is_finite:
            self._not_finite.add(index)
        modules = self._manager.modules
        for left, (name, module) in zip(range(len(modules) - 1, -1, -1), modules.items(), strict=True):
            if layer := self._manager._get_lora_layer_weights(lora, name):
                slot_weights.write(module, index, layer)
            else:
                module.reset_lora(index)
            yield left
        if lora.is_finite:
            # Only now, as a copy may be given up half-way.
            self._not_finite.discard(index)
        self._ranks[lora.id] = slot_weights.largest_rank(lora)
        self._manager._registered_adapters[lora.id] = Placed(lora.id, lora.rank, {})
        self._manager._active_adapters[lora.id] = None


class Copied(LoRAModel):  # type: ignore[misc]  # vLLM ships no types
    """An adapter in host memory of its own, in the dtype that slots have.

    vLLM's has views of the file, which is read, and copied page by page, when a tensor is first used or scaled. Where
    it pins what it reads, it copies by itself.

    Attributes:
        is_finite: whether its LoRA B is known to hold finite numbers; an upload does, which a dtype may not reach.
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
        own, unrested = dict[str, torch.Tensor](), 0
        for name, tensor in tensors.items():
            own[name] = tensor.to(dtype=dtype) if PIN_MEMORY else _copied(name, tensor, dtype)
            unrested += tensor.nbytes
            if unrested >= _REST_BYTES:
                _rest()
                unrested = 0
        look_up_full_names(peft_helper)
        return super().from_lora_tensors(lora_model_id, own, peft_helper, *args, dtype=dtype, **kwargs)


class Placed(LoRAModel):  # type: ignore[misc]  # vLLM ships no types
    """What vLLM keeps of an adapter that has a slot: no weights, as the slot has them.

    vLLM would ask for weights only to copy them into a slot by its own choice. It is never left that choice; were it
    to take it, a dead engine is better than one that answers with an empty adapter.
    """

    def get_lora(self, module_name: str) -> Any:
        raise RuntimeError(f"adapter {self.id} was to be activated by vLLM itself ({module_name})")


def look_up_full_names(helper: Any) -> None:
    """Let vLLM's ``PEFTHelper`` look patterns up that are full names of modules.

    Such a pattern matches the module of this name and no other one. vLLM would compile each for each module, which for
    the 560 layers of a 70B and as many patterns takes minutes.
    """
    if all(map(is_full_name, (*helper.rank_pattern, *helper.alpha_pattern))):
        helper._match_pattern = _look_up


def _look_up(pattern: Mapping[str, Any], name: str) -> Any:
    return pattern.get(name)


def _step_back(processors: set[int]) -> None:
    """Leave the rest of the machine to the threads that run the steps. Linux keeps both numbers for each thread."""
    torch.set_num_threads(1)
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)
    os.sched_setaffinity(thread, processors)


def _processors() -> set[int]:
    """Those that no thread of this process is bound to; all that its parent has, if there is no such thread.

    A CPU worker's threads are bound to a core each, and a core is kept free of them. On a core of theirs, staging took
    five times as long and held the interpreter's lock while it waited for its turn: steps of 20 ms took up to 129.
    """
    everywhere, bound = os.sched_getaffinity(os.getppid()), set[int]()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            its_own = os.sched_getaffinity(int(thread.name))
            bound |= its_own if its_own < everywhere else set()
    return everywhere - bound or everywhere


def _read_through(file: Path) -> None:
    """Have the file in memory: safetensors touches what it maps with the interpreter's lock held.

    A step beside it waited 50 ms for a disk.
    """
    piece = bytearray(_PIECE_BYTES)
    with file.open("rb", buffering=0) as opened:
        while opened.readinto(piece):
            _rest()


def _rest() -> None:
    if not PIN_MEMORY:  # otherwise the steps run on a card
        time.sleep(_REST_S)


def _copied(name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A copy that lies in memory as a CPU's slots do."""
    copy = tensor.to(dtype=dtype, copy=True)
    return copy.t().contiguous().t() if _LORA_B in name and lies_by_rank(copy) else copy
