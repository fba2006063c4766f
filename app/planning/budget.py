"""Memory budget of an engine: weights, LoRA slots, KV cache, and the number of sequences that fit.

The formulas follow vLLM 0.32's allocations, so weights, slots and KV cache are exact to the byte. The ``reserve`` for
everything else is an estimate. On several GPUs every figure is for one of them.
"""

from dataclasses import dataclass

from adapters.geometry import HEAD_MODULE, LINEAR_MODULES
from app.planning.base import PlannedBase, local_kv_heads, weight_bytes

GIB = 2**30

#: Default KV cache of a CPU engine in bytes. vLLM would take nearly all of the machine's memory.
CPU_KV_CACHE_BYTES = GIB

#: Assumed prompt and answer tokens of a typical sequence.
TYPICAL_TOKENS = 1024

#: Tokens per KV cache block: vLLM's defaults (platforms/cpu.py, config/cache.py).
_BLOCK_TOKENS = {"cpu": 128, "gpu": 16}
#: Blocks that vLLM keeps for itself (v1/core/block_pool.py: null_block).
_OWN_BLOCKS = 1
#: Column-parallel layers: outputs and LoRA B are split over devices. The others split their inputs.
_BY_OUTPUT = frozenset(LINEAR_MODULES) - {"o_proj", "down_proj"}
#: Sampling takes three float32 copies of the logits: as computed, sorted and cumulated.
_LOGIT_COPIES, _LOGIT_BYTES = 3, 4
#: GPU: CUDA context, libraries and graphs. CPU: two processes that have imported torch and vLLM.
_RUNTIME_BYTES = {"gpu": 3 * GIB // 2, "cpu": 3 * GIB}


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory to plan with.

    Attributes:
        memory: bytes of one GPU, or of a machine without one.
        cpu: True if the engine runs without a GPU.
    """

    memory: int
    cpu: bool

    @property
    def kind(self) -> str:
        return "cpu" if self.cpu else "gpu"


@dataclass(frozen=True, slots=True)
class Serving:
    """Serving parameters that the operator sets.

    Attributes:
        max_lora_rank: rank to which every slot is padded.
        max_model_len: longest sequence in tokens.
        sequences: maximum number of concurrent sequences (vLLM's ``max_num_seqs``).
        batched_tokens: maximum tokens of one step (vLLM's ``max_num_batched_tokens``).
        kv_cache_bytes: size of the KV cache in bytes; None for the remaining memory, on a GPU only.
        host_bytes: host memory for staged adapters, in bytes.
        utilization: share of a GPU's memory that vLLM takes.
        lora_head: True if slots have room for the head.
    """

    max_lora_rank: int
    max_model_len: int
    sequences: int
    batched_tokens: int
    kv_cache_bytes: int | None
    host_bytes: int
    tensor_parallel_size: int = 1
    utilization: float = 0.92
    lora_head: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory budget in bytes of one device.

    Attributes:
        memory: memory that the engine may take.
        weights: size of the base's weights.
        slots, slot, slots_bytes: number of slots, size of one, size of all.
        head: share of the head in one slot.
        reserve: estimate of activations and of the engine's fixed costs.
        host: staged adapters if they share the engine's memory (no GPU), else 0.
        kv_cache: size of the KV cache; below 0 if it was to take the remaining memory and none remains.
        kv_token: keys and values of one token in all layers.
        kv_tokens: number of tokens that sequences can use, in whole blocks.
        sequences_full: number of concurrent sequences of ``max_model_len``, at most the engine's limit.
        sequences_typical: the same for sequences of :data:`TYPICAL_TOKENS`.
        left: unused memory; below 0 if the rest does not fit.
        staged: number of adapters of the largest rank that host memory holds.
    """

    memory: int
    weights: int
    slots: int
    slot: int
    head: int
    slots_bytes: int
    reserve: int
    host: int
    kv_cache: int
    kv_token: int
    kv_tokens: int
    sequences_full: int
    sequences_typical: int
    left: int
    staged: int


def budget_of(base: PlannedBase, machine: Machine, serving: Serving, slots: int) -> Budget:
    """Compute the memory budget of an engine with ``slots`` slots."""
    weights = weight_bytes(base, serving.tensor_parallel_size)
    head = head_bytes(base, serving.max_lora_rank) if serving.lora_head else 0
    slot = slot_bytes(base, serving.max_lora_rank, serving.tensor_parallel_size, head=serving.lora_head)
    reserve, host = reserve_bytes(base, machine, serving), host_bytes(machine, serving)
    memory = usable_bytes(machine, serving)
    rest = memory - weights - slots * slot - reserve - host
    kv_cache = rest if serving.kv_cache_bytes is None else serving.kv_cache_bytes
    return Budget(
        memory=memory,
        weights=weights,
        slots=slots,
        slot=slot,
        head=head,
        slots_bytes=slots * slot,
        reserve=reserve,
        host=host,
        kv_cache=kv_cache,
        kv_token=kv_token_bytes(base, serving.tensor_parallel_size),
        kv_tokens=kv_blocks(base, machine, serving, kv_cache) * _BLOCK_TOKENS[machine.kind],
        sequences_full=_sequences(base, machine, serving, kv_cache, serving.max_model_len),
        sequences_typical=_sequences(base, machine, serving, kv_cache, min(TYPICAL_TOKENS, serving.max_model_len)),
        left=rest - kv_cache,
        staged=serving.host_bytes // slot_bytes(base, serving.max_lora_rank, head=serving.lora_head),
    )


def usable_bytes(machine: Machine, serving: Serving) -> int:
    """Return the memory that vLLM may take: ``gpu_memory_utilization`` of a GPU, or all memory of a CPU machine."""
    return machine.memory if machine.cpu else int(machine.memory * serving.utilization)


def host_bytes(machine: Machine, serving: Serving) -> int:
    """Return the bytes of staged adapters that share the engine's memory; 0 on a GPU."""
    return serving.host_bytes if machine.cpu else 0


def head_bytes(base: PlannedBase, rank: int) -> int:
    """Return the bytes of the head in one slot, equal on each device (vLLM 0.32, lora/layers/logits_processor.py)."""
    return rank * sum(base.geometry.dims_of(HEAD_MODULE)) * base.item_bytes


def slot_bytes(base: PlannedBase, rank: int, tensor_parallel_size: int = 1, *, head: bool = False) -> int:
    """Return the bytes of one slot on one device.

    Each linear layer with ``i`` inputs and ``o`` outputs takes ``[rank, i]`` and ``[o, rank]`` in the engine's dtype.
    vLLM allocates both even if an adapter does not change the layer (vLLM 0.32, lora/layers/base_linear.py:
    create_lora_weights). Several devices split the outputs of q, k, v, gate and up, and the inputs of o and down.
    """
    values = 0
    for module, (inputs, outputs) in base.geometry.dims.items():
        if module in ("k_proj", "v_proj"):
            outputs = outputs // base.kv_heads * local_kv_heads(base, tensor_parallel_size)
        elif module in _BY_OUTPUT:
            outputs //= tensor_parallel_size
        else:
            inputs //= tensor_parallel_size
        values += rank * (inputs + outputs)
    return base.geometry.layers * values * base.item_bytes + (head_bytes(base, rank) if head else 0)


def kv_token_bytes(base: PlannedBase, tensor_parallel_size: int = 1) -> int:
    """Return the KV cache bytes of one token in all layers, on one device (vLLM 0.32, v1/kv_cache_interface.py)."""
    width = base.geometry.dims["k_proj"][1] // base.kv_heads * local_kv_heads(base, tensor_parallel_size)
    return 2 * width * base.item_bytes * base.geometry.layers


def kv_blocks(base: PlannedBase, machine: Machine, serving: Serving, kv_cache: int) -> int:
    """Return the number of blocks that sequences can use in a KV cache of ``kv_cache`` bytes."""
    block = _BLOCK_TOKENS[machine.kind] * kv_token_bytes(base, serving.tensor_parallel_size)
    return max(0, kv_cache // block - _OWN_BLOCKS)


def kv_bytes_for(base: PlannedBase, machine: Machine, serving: Serving, tokens: int) -> int:
    """Return the size in bytes of the smallest KV cache that fits one sequence of ``tokens`` tokens."""
    tokens_of_block = _BLOCK_TOKENS[machine.kind]
    blocks = -(-tokens // tokens_of_block) + _OWN_BLOCKS
    return blocks * tokens_of_block * kv_token_bytes(base, serving.tensor_parallel_size)


def reserve_bytes(base: PlannedBase, machine: Machine, serving: Serving) -> int:
    """Estimate the memory of an engine besides weights, slots and KV cache.

    It is the larger of two peaks of a step, plus the fixed cost of the runtime:

    - the feed-forward layer over the batched tokens (gate and up, their product, the residual stream twice),
    - sampling (three float32 copies of the sequences' logits).
    """
    devices = serving.tensor_parallel_size
    hidden, intermediate = base.geometry.hidden, base.geometry.dims["gate_proj"][1] // devices
    forward = serving.batched_tokens * (3 * intermediate + 2 * hidden) * base.item_bytes
    sampling = serving.sequences * base.geometry.vocab * _LOGIT_BYTES * _LOGIT_COPIES
    return max(forward, sampling) + _RUNTIME_BYTES[machine.kind]


def _sequences(base: PlannedBase, machine: Machine, serving: Serving, kv_cache: int, tokens: int) -> int:
    blocks = -(-tokens // _BLOCK_TOKENS[machine.kind])
    return min(serving.sequences, kv_blocks(base, machine, serving, kv_cache) // blocks)
