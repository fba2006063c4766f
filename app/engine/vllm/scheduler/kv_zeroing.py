"""KV cache blocks that are zeroed before each new use, so that NaN of one adapter reaches no other request."""

from dataclasses import fields
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig


class _Zeroed(KVCacheConfig):  # type: ignore[misc]  # vLLM ships no types
    """KV cache configuration whose blocks are zeroed before each new use."""

    needs_kv_cache_zeroing = True


def zeroed(config: KVCacheConfig) -> KVCacheConfig:
    """Return the same configuration with zeroing."""
    return _Zeroed(**{field.name: getattr(config, field.name) for field in fields(config)})


class ZeroedBlocks(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler with KV cache blocks that are zeroed before a request gets them.

    An adapter with NaN hidden states leaves NaN in its blocks. The next request that gets those blocks may be any
    tenant's. Attention kernels give positions after a sequence's end the weight 0, and 0 times NaN is NaN. So that
    request's answer would be NaN too (seen on a CPU with vLLM 0.32; FlashAttention 3 does it as well).
    """

    def __init__(self, *args: Any, kv_cache_config: KVCacheConfig, **kwargs: Any) -> None:
        super().__init__(*args, kv_cache_config=zeroed(kv_cache_config), **kwargs)
