"""Tenora's additions to vLLM's processes: worker methods for ``collective_rpc``, and a scheduler for the core."""

import gc
import os
from dataclasses import fields
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import KVCacheConfig

from app.engine.vllm.patches.zmq_wakeups import take_wakeups
from app.engine.vllm.scheduler.output_batching import CoalescedOutputs
from app.engine.vllm.scheduler.preemption import PrioritySteps
from app.engine.vllm.scheduler.prefill_chunking import BoundedSteps
from app.engine.vllm.worker.cpu_lora import GroupedPunicaWrapper, lay_out
from app.engine.vllm.worker.kernel_check import KernelCheck
from app.engine.vllm.worker.parent_watch import end_with_server
from app.engine.vllm.worker.seeded_sampling import keep_seeds
from app.engine.vllm.worker.stager import Stager


class WorkerExtension:
    """Mixin for vLLM's worker class. Names start with ``tenora_`` so that none can clash with vLLM's."""

    #: Cores for the thread that runs the steps, once all other threads have started; empty: any core.
    tenora_processors: frozenset[int] = frozenset()

    def tenora_prepare(self) -> None:
        """Prepare a new worker for clients' requests. Call it once, before the first request."""
        if self.tenora_processors:
            os.sched_setaffinity(0, self.tenora_processors)
        if torch.cpu._is_amx_tile_supported():
            # Otherwise a one-token prompt as the very first request dies of SIGILL.
            torch.cpu._init_amx()
        take_wakeups()
        runner = self.model_runner  # type: ignore[attr-defined]  # of vLLM's worker
        self._tenora_stager = Stager(runner.lora_manager)
        if current_platform.is_cpu():
            self._tenora_group_tokens(runner.lora_manager)
            keep_seeds(runner)
        else:
            # Locate the blocks that the scheduler below has cleared. A CPU worker needs no preparation.
            runner._init_kv_zero_meta()
        # vLLM does this in GPU workers only. Loads of adapters trigger full collections, which would stall the steps.
        # See docs/decisions/0023-memory-of-long-running-engine-processes.md.
        gc.collect()
        gc.freeze()

    def tenora_check_kernels(self) -> dict[str, Any]:
        """Run :class:`app.engine.vllm.worker.kernel_check.KernelCheck`. Call it while no adapter has a slot."""
        manager = self.model_runner.lora_manager._adapter_manager  # type: ignore[attr-defined]
        return KernelCheck(manager, self._tenora_stager.occupied).run().plain()

    def tenora_stage(self, version_id: int, name: str, path: str, evict: list[int]) -> None:
        """See :class:`app.engine.vllm.worker.stager.Stager`, also for the methods below."""
        self._tenora_stager.stage(version_id, name, path, evict)

    def tenora_finished(self) -> list[tuple[int, int, str]]:
        return self._tenora_stager.finished()

    def tenora_unstage(self, version_ids: list[int]) -> None:
        for version_id in version_ids:
            self._tenora_stager.unstage(version_id)

    def tenora_change_slots(self, changes: list[tuple[int | None, list[int]]], budget_s: float) -> list[str]:
        return self._tenora_stager.change_slots(changes, budget_s)

    def _tenora_group_tokens(self, workers: Any) -> None:
        """Make this CPU worker apply LoRA matrices slot by slot."""
        manager = workers._adapter_manager
        wrapper = GroupedPunicaWrapper(
            manager.max_num_batched_tokens,
            manager.max_num_seqs,
            manager.device,
            max_rank=manager.lora_config.max_lora_rank,
            rank_of=self._tenora_stager.rank_of,
            is_finite=self._tenora_stager.is_finite,
        )
        for key in manager.punica_wrapper_mapping:
            manager.punica_wrapper_mapping[key] = wrapper
        for module in manager.modules.values():
            if isinstance(module.lora_b_stacked, tuple):  # the head has a single tensor
                module.lora_b_stacked = tuple(map(lay_out, module.lora_b_stacked))
            module.set_mapping(wrapper)


class _Cleared(KVCacheConfig):  # type: ignore[misc]  # vLLM ships no types
    """KV cache configuration whose blocks are zeroed before each new use."""

    needs_kv_cache_zeroing = True


def _cleared(config: KVCacheConfig) -> KVCacheConfig:
    return _Cleared(**{field.name: getattr(config, field.name) for field in fields(config)})


def _in_core() -> None:
    """Prepare the engine core's process. It runs from the scheduler, Tenora's only object that is made there."""
    end_with_server()
    take_wakeups()
    # The server calls it by name, as a utility method of the core.
    EngineCore.tenora_untold = _untold


def _untold(core: EngineCore, names: list[str]) -> int:
    return int(core.scheduler.take_untold(names))


class ClearingScheduler(PrioritySteps, CoalescedOutputs):
    """vLLM's scheduler with KV cache blocks that are zeroed before a request gets them.

    An adapter with NaN hidden states leaves NaN in its blocks. The next request that gets those blocks may be any
    tenant's. Attention kernels give positions after a sequence's end the weight 0, and 0 times NaN is NaN. So that
    request's answer would be NaN too (seen on a CPU with vLLM 0.32; FlashAttention 3 does it as well).
    """

    def __init__(self, *args: Any, kv_cache_config: KVCacheConfig, **kwargs: Any) -> None:
        _in_core()
        super().__init__(*args, kv_cache_config=_cleared(kv_cache_config), **kwargs)


class BoundedScheduler(ClearingScheduler, BoundedSteps):
    """:class:`ClearingScheduler` with bounded prefill, applied after priorities have selected the step's sequences."""


class ClearingAsyncScheduler(PrioritySteps, CoalescedOutputs, AsyncScheduler):  # type: ignore[misc]
    """:class:`ClearingScheduler` for asynchronous scheduling."""

    def __init__(self, *args: Any, kv_cache_config: KVCacheConfig, **kwargs: Any) -> None:
        _in_core()
        super().__init__(*args, kv_cache_config=_cleared(kv_cache_config), **kwargs)
