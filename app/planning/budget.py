"""What takes how much memory: weights, LoRA slots, KV cache, and how many sequences remain.

The formulas are those by which vLLM 0.32 allocates, so weights, slots and KV cache are exact to the byte; what an
engine needs besides (``reserve``) is an estimate. On several GPUs every figure is that of one of them.
"""

from dataclasses import dataclass

from adapters.geometry import HEAD_MODULE, LINEAR_MODULES
from app.planning.base import PlannedBase, local_kv_heads, weight_bytes

GIB = 2**30

#: The KV cache of a CPU engine when nobody says another: vLLM would take nearly all of the machine's memory.
CPU_KV_CACHE_BYTES = GIB

#: Tokens of prompt and answer of a sequence that is neither short nor long.
TYPICAL_TOKENS = 1024

#: Tokens of one block of the KV cache: vLLM's defaults (platforms/cpu.py, config/cache.py).
_BLOCK_TOKENS = {"cpu": 128, "gpu": 16}
#: vLLM keeps one block for itself (v1/core/block_pool.py: null_block).
_OWN_BLOCKS = 1
#: A Llama's layers whose outputs are split over devices together with their LoRA B; the others split their inputs.
_BY_OUTPUT = frozenset(LINEAR_MODULES) - {"o_proj", "down_proj"}
#: Floats per logit while a batch is sampled: the logits in float32, and sorted and summed up copies of them.
_LOGIT_COPIES, _LOGIT_BYTES = 3, 4
#: A CUDA context, libraries and graphs; two processes with torch and vLLM imported.
_RUNTIME_BYTES = {"gpu": 3 * GIB // 2, "cpu": 3 * GIB}


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to plan with.

    Attributes:
        memory: bytes: of one GPU, or of a machine without one.
        cpu: whether the engine runs without a GPU.
    """

    memory: int
    cpu: bool

    @property
    def kind(self) -> str:
        return "cpu" if self.cpu else "gpu"


@dataclass(frozen=True, slots=True)
class Serving:
    """What the operator decides.

    Attributes:
        max_lora_rank: that every slot is padded to.
        max_model_len: longest sequence in tokens.
        sequences: most that run at the same time (vLLM's ``max_num_seqs``).
        batched_tokens: most tokens of one step (vLLM's ``max_num_batched_tokens``).
        kv_cache_bytes: None: what is left, which only a GPU allows.
        host_bytes: host memory for staged adapters.
        utilization: share of a GPU's memory that vLLM takes.
        lora_head: whether slots have room for the head.
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
    """Where the memory goes, in bytes of one device.

    Attributes:
        memory: that the engine may take.
        weights: of the base.
        slots, slot, slots_bytes: their number, what one takes, what all take.
        head: of one slot, what the head takes.
        reserve: estimate of activations and of what an engine takes by being there.
        host: for staged adapters, where that is the engine's memory too (no GPU); else 0.
        kv_cache: below 0 if it was to be what is left, and nothing is.
        kv_token: one token's keys and values in all layers.
        kv_tokens: that sequences can use; blocks are whole.
        sequences_full: sequences of ``max_model_len`` that fit at the same time, at most the engine's limit.
        sequences_typical: the same, of :data:`TYPICAL_TOKENS`.
        left: what nothing takes; below 0 if the rest does not fit.
        staged: adapters of the largest rank that host memory holds.
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
    """The budget of an engine with so many slots."""
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
    """Of a GPU vLLM takes ``gpu_memory_utilization``; a CPU engine has no such limit once its KV cache is given."""
    return machine.memory if machine.cpu else int(machine.memory * serving.utilization)


def host_bytes(machine: Machine, serving: Serving) -> int:
    """Staged adapters, where the engine's memory is the host's."""
    return serving.host_bytes if machine.cpu else 0


def head_bytes(base: PlannedBase, rank: int) -> int:
    """Bytes of the head in one slot, the same on each device (vLLM 0.32, lora/layers/logits_processor.py)."""
    return rank * sum(base.geometry.dims_of(HEAD_MODULE)) * base.item_bytes


def slot_bytes(base: PlannedBase, rank: int, tensor_parallel_size: int = 1, *, head: bool = False) -> int:
    """Bytes of one slot on one device.

    For each linear layer with ``i`` inputs and ``o`` outputs ``[rank, i]`` and ``[o, rank]`` in the engine's dtype,
    whether an adapter changes that layer or not (vLLM 0.32, lora/layers/base_linear.py: create_lora_weights). On
    several devices the outputs of q, k, v, gate and up are split, and the inputs of o and down.
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
    """Bytes of one token's keys and values in all layers, on one device (vLLM 0.32, v1/kv_cache_interface.py)."""
    width = base.geometry.dims["k_proj"][1] // base.kv_heads * local_kv_heads(base, tensor_parallel_size)
    return 2 * width * base.item_bytes * base.geometry.layers


def kv_blocks(base: PlannedBase, machine: Machine, serving: Serving, kv_cache: int) -> int:
    """Blocks that sequences can use in a KV cache of so many bytes."""
    block = _BLOCK_TOKENS[machine.kind] * kv_token_bytes(base, serving.tensor_parallel_size)
    return max(0, kv_cache // block - _OWN_BLOCKS)


def kv_bytes_for(base: PlannedBase, machine: Machine, serving: Serving, tokens: int) -> int:
    """The smallest KV cache in which one sequence of so many tokens fits."""
    tokens_of_block = _BLOCK_TOKENS[machine.kind]
    blocks = -(-tokens // tokens_of_block) + _OWN_BLOCKS
    return blocks * tokens_of_block * kv_token_bytes(base, serving.tensor_parallel_size)


def reserve_bytes(base: PlannedBase, machine: Machine, serving: Serving) -> int:
    """Estimate of what an engine takes besides weights, slots and KV cache.

    The larger of two moments of a step: the feed-forward of its tokens (gate and up, their product, the residual
    stream twice), and sampling (float32 logits of its sequences, three copies); and what is there before any step.
    """
    devices = serving.tensor_parallel_size
    hidden, intermediate = base.geometry.hidden, base.geometry.dims["gate_proj"][1] // devices
    forward = serving.batched_tokens * (3 * intermediate + 2 * hidden) * base.item_bytes
    sampling = serving.sequences * base.geometry.vocab * _LOGIT_BYTES * _LOGIT_COPIES
    return max(forward, sampling) + _RUNTIME_BYTES[machine.kind]


def _sequences(base: PlannedBase, machine: Machine, serving: Serving, kv_cache: int, tokens: int) -> int:
    blocks = -(-tokens // _BLOCK_TOKENS[machine.kind])
    return min(serving.sequences, kv_blocks(base, machine, serving, kv_cache) // blocks)
