"""Tenora's additions to vLLM's workers: methods for ``collective_rpc``."""

import gc
import logging
import os
from typing import Any

import torch
from vllm.platforms import current_platform

from app.engine.vllm.patches.ledger import OPTIONAL, applied
from app.engine.vllm.patches.zmq_wakeups import take_wakeups
from app.engine.vllm.worker.cpu_lora import GroupedPunicaWrapper, lay_out
from app.engine.vllm.worker.kernel_check import KernelCheck
from app.engine.vllm.worker.seeded_sampling import keep_seeds
from app.engine.vllm.worker.stager import Stager

logger = logging.getLogger(__name__)


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
        patches = applied(self.vllm_config.additional_config)  # type: ignore[attr-defined]  # of vLLM's worker
        if patches != OPTIONAL:
            logger.info("Patches of vLLM that are off in a worker: %s", ", ".join(sorted(OPTIONAL - patches)))
        if "zmq_wakeups" in patches:
            take_wakeups()
        runner = self.model_runner  # type: ignore[attr-defined]
        self._tenora_stager = Stager(runner.lora_manager, patches)
        if current_platform.is_cpu():
            self._tenora_group_tokens(runner.lora_manager)
            keep_seeds(runner)
        else:
            # Locate the blocks that the scheduler has zeroed. A CPU worker needs no preparation.
            runner._init_kv_zero_meta()
        if "heap_freeze" in patches:
            # vLLM does this in GPU workers only. Loads of adapters trigger full collections, which stall the steps.
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
