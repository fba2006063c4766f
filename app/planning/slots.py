"""Default number of LoRA slots (``max_loras = auto``)."""

from app.planning.base import PlannedBase, weight_bytes
from app.planning.budget import Machine, Serving, host_bytes, kv_bytes_for, reserve_bytes, slot_bytes, usable_bytes

#: Maximum share for slots of the memory left by weights, reserve and (on a CPU) KV cache and staged adapters. On a GPU
#: the KV cache gets the rest. See docs/decisions/0030-default-number-of-lora-slots.md.
SLOTS_SHARE = 1 / 4

#: Maximum share of a step's time that all idle slots together may add.
_PRICE_SHARE = 0.05

#: Seconds that an idle slot adds to a CPU step, and the shortest step in seconds that it is weighed against. Only
#: vLLM's table of slots grows with their number. See docs/decisions/0030-default-number-of-lora-slots.md.
_IDLE_SLOT_S = 0.09e-6
_SHORTEST_STEP_S = 5e-3

#: Upper limit on a CPU: each slot takes memory and start-up time, used or not.
_MOST_ON_CPU = 1024

#: Upper limit on a GPU, not measured. The grid of vLLM's LoRA kernels has one layer of thread blocks per slot, in use
#: or not, unless ``specialize_active_lora`` is on (vLLM 0.32, lora/ops/triton_ops/lora_shrink_op.py). Blocks of idle
#: slots exit at once.
_MOST_ON_GPU = 64


def slots_for(base: PlannedBase, machine: Machine, serving: Serving) -> int:
    """Return the number of slots for ``max_loras = auto``: at least 1, however little memory there is.

    It is the minimum of four limits:

    - the number that fits into :data:`SLOTS_SHARE` of the memory,
    - the number that leaves a KV cache for one sequence of ``max_model_len``,
    - on a CPU, the number that adds at most 5 % to a step,
    - a fixed ceiling.

    The minimum is rounded down to 2^n or 1.5 * 2^n, so that nearly equal machines get the same number.
    """
    slot = slot_bytes(base, serving.max_lora_rank, serving.tensor_parallel_size, head=serving.lora_head)
    by_memory = memory_for_slots(base, machine, serving) // slot
    by_price = int(_PRICE_SHARE * _SHORTEST_STEP_S / _IDLE_SLOT_S) if machine.cpu else _MOST_ON_GPU
    ceiling = _MOST_ON_CPU if machine.cpu else _MOST_ON_GPU
    return _round_down(max(1, min(by_memory, by_price, ceiling)))


def memory_for_slots(base: PlannedBase, machine: Machine, serving: Serving) -> int:
    """Return the bytes of one device that slots may take; below 0 if even the rest does not fit."""
    beyond = usable_bytes(machine, serving) - weight_bytes(base, serving.tensor_parallel_size)
    beyond -= reserve_bytes(base, machine, serving) + host_bytes(machine, serving)
    if serving.kv_cache_bytes is not None:
        return int((beyond - serving.kv_cache_bytes) * SLOTS_SHARE)
    longest = kv_bytes_for(base, machine, serving, serving.max_model_len)
    return min(int(beyond * SLOTS_SHARE), beyond - longest)


def _round_down(number: int) -> int:
    power = 1 << (number.bit_length() - 1)
    return max(power, power * 3 // 2 if number >= power * 3 // 2 else power)
