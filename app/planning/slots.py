"""How many LoRA slots an engine gets when nobody says a number."""

from app.planning.base import PlannedBase, weight_bytes
from app.planning.budget import Machine, Serving, host_bytes, kv_bytes_for, reserve_bytes, slot_bytes, usable_bytes

#: Slots get at most this share of the memory that weights, reserve and (on a CPU) KV cache and staged adapters leave.
#: On a GPU the KV cache gets the rest. When every sequence brings an adapter of its own, slots limit how many run;
#: when all bring the same one, the KV cache does. Llama 3 8B at rank 64 on 80 GiB: a quarter buys 32 slots and leaves
#: 365 sequences of 1,024 tokens; a tenth buys 16 and leaves 405: half as good for many adapters, little better for one.
SLOTS_SHARE = 1 / 4

#: What all idle slots together may add to a step, as a share of it.
_PRICE_SHARE = 0.05

#: Seconds that an idle slot adds to every step, and the shortest step it could add them to. On a CPU what grows with
#: the slots is vLLM's table of them, of 2.34 ms with 16 slots and 2.68 ms with 4,096 (2 cores, 32 tokens for 16
#: adapters; measured by `python -m app.lab.bench.cpu_kernel`); products are made for slots in use only. Products over
#: all slots, as by torch's grouped_mm, would cost far more, here with 4 layers and 4 slots in use:
#:
#:     slots                     16    64   128   256   512  1024
#:     grouped_mm, ms a step    5.0   7.8  11.6  18.4  33.0  62.4
_IDLE_SLOT_S = 0.09e-6
_SHORTEST_STEP_S = 5e-3

#: Each takes its memory from the start, used or not, and at rank 64 some 8 ms of the start, too.
_MOST_ON_CPU = 1024

#: Not measured. On a GPU the grid of vLLM's LoRA kernels has one layer of thread blocks per slot, in use or not (idle
#: ones end at once), unless ``specialize_active_lora`` is on (vLLM 0.32, lora/ops/triton_ops/lora_shrink_op.py).
_MOST_ON_GPU = 64


def slots_for(base: PlannedBase, machine: Machine, serving: Serving) -> int:
    """The number of slots for ``max_loras = auto``: at least 1, however little memory there is.

    The least of: what :data:`SLOTS_SHARE` of the memory buys, what leaves a KV cache for one sequence of
    ``max_model_len``, what costs a step at most 5 %, and a ceiling; rounded down to 2^n or 1.5 * 2^n, so that machines
    that are nearly alike get the same number.
    """
    slot = slot_bytes(base, serving.max_lora_rank, serving.tensor_parallel_size, head=serving.lora_head)
    by_memory = memory_for_slots(base, machine, serving) // slot
    by_price = int(_PRICE_SHARE * _SHORTEST_STEP_S / _IDLE_SLOT_S) if machine.cpu else _MOST_ON_GPU
    ceiling = _MOST_ON_CPU if machine.cpu else _MOST_ON_GPU
    return _round_down(max(1, min(by_memory, by_price, ceiling)))


def memory_for_slots(base: PlannedBase, machine: Machine, serving: Serving) -> int:
    """Bytes of one device that slots may take; below 0 if not even the rest fits."""
    beyond = usable_bytes(machine, serving) - weight_bytes(base, serving.tensor_parallel_size)
    beyond -= reserve_bytes(base, machine, serving) + host_bytes(machine, serving)
    if serving.kv_cache_bytes is not None:
        return int((beyond - serving.kv_cache_bytes) * SLOTS_SHARE)
    longest = kv_bytes_for(base, machine, serving, serving.max_model_len)
    return min(int(beyond * SLOTS_SHARE), beyond - longest)


def _round_down(number: int) -> int:
    power = 1 << (number.bit_length() - 1)
    return max(power, power * 3 // 2 if number >= power * 3 // 2 else power)
