"""What Tenora adds to vLLM's own processes: to the workers by ``collective_rpc``, to the engine's core a scheduler."""

from dataclasses import fields
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig

#: No version has this id: version rows start at 1.
_ZERO_ADAPTER = 0


class WorkerExtension:
    """Mixed into vLLM's worker class. Names start with ``tenora_`` so that none can clash with vLLM's."""

    def tenora_prepare(self, *, reserve_zero_slot: bool) -> None:
        """Make a fresh worker safe for what clients send; call once, before the first request."""
        if torch.cpu._is_amx_tile_supported():
            # A one-token prompt as the very first request would die of SIGILL otherwise.
            torch.cpu._init_amx()
        if reserve_zero_slot:
            self._tenora_reserve_zero_slot()
        if not current_platform.is_cpu():
            # Where the blocks are that the scheduler below has cleared. A CPU worker needs no preparation.
            self.model_runner._init_kv_zero_meta()  # type: ignore[attr-defined]  # of vLLM's worker

    def tenora_unpin(self, version_id: int) -> None:
        """Undo ``pin_lora``, for which vLLM has no call."""
        manager = self.model_runner.lora_manager._adapter_manager  # type: ignore[attr-defined]  # of vLLM's worker
        for cache in (manager._registered_adapters, manager._active_adapters):
            cache.pinned_items.discard(version_id)

    def _tenora_reserve_zero_slot(self) -> None:
        """Keep the last LoRA slot zero: CPU kernels read it (index -1) for tokens without an adapter."""
        manager = self.model_runner.lora_manager._adapter_manager  # type: ignore[attr-defined]  # of vLLM's worker
        last = manager.lora_slots - 1
        for module in manager.modules.values():
            module.reset_lora(last)
        manager.lora_index_to_id[last] = _ZERO_ADAPTER
        manager._active_adapters[_ZERO_ADAPTER] = None
        manager._active_adapters.pin(_ZERO_ADAPTER)


class _Cleared(KVCacheConfig):  # type: ignore[misc]  # vLLM ships no types
    """A KV cache whose blocks are zeroed before each new use."""

    needs_kv_cache_zeroing = True


def _cleared(config: KVCacheConfig) -> KVCacheConfig:
    return _Cleared(**{field.name: getattr(config, field.name) for field in fields(config)})


class ClearingScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, with blocks of the KV cache zeroed before a request gets them.

    An adapter whose hidden states are NaN leaves NaN in its blocks, and the next request, any tenant's, gets those
    blocks. Attention kernels give positions behind a sequence's end the weight 0, and 0 times NaN is NaN: that
    request's answer would be NaN too (seen on a CPU with vLLM 0.32; FlashAttention 3 does it as well).
    """

    def __init__(self, *args: Any, kv_cache_config: KVCacheConfig, **kwargs: Any) -> None:
        super().__init__(*args, kv_cache_config=_cleared(kv_cache_config), **kwargs)


class ClearingAsyncScheduler(AsyncScheduler):  # type: ignore[misc]
    """:class:`ClearingScheduler` for asynchronous scheduling."""

    def __init__(self, *args: Any, kv_cache_config: KVCacheConfig, **kwargs: Any) -> None:
        super().__init__(*args, kv_cache_config=_cleared(kv_cache_config), **kwargs)
