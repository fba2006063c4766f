"""Advice on a memory budget for operators: stable codes, with the arithmetic in the message."""

from collections.abc import Iterator
from dataclasses import dataclass

from app.planning.budget import TYPICAL_TOKENS, Budget, Serving

#: Values that vLLM accepts as ``max_lora_rank`` (config/lora.py: MaxLoRARanks).
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

#: Most common rank of adapters.
_COMMON_RANK = 8
#: Warn if slots leave the KV cache less than this share of its size without slots.
_FEW = 0.5


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice.

    Attributes:
        code: stable machine-readable code.
        message: the situation with its numbers, and possible remedies.
    """

    code: str
    message: str


def advise(budget: Budget, serving: Serving, adapters: int) -> tuple[Advice, ...]:
    """Return all advice on a budget; problems that keep the engine from starting come first."""
    return tuple(_all(budget, serving, adapters))


def _all(budget: Budget, serving: Serving, adapters: int) -> Iterator[Advice]:
    if budget.left < 0 or budget.kv_cache < 0:
        missing = -min(budget.left, budget.kv_cache)
        yield Advice(
            "does_not_fit",
            f"{size(missing)} are missing: fewer slots, a smaller max_lora_rank, or more memory",
        )
    if budget.sequences_full < 1:
        yield Advice("kv_cache_too_small", _kv_cache_too_small(budget, serving))
    if serving.max_lora_rank > _COMMON_RANK:
        yield Advice("padding", _padding(budget, serving))
    if adapters > budget.slots:
        yield Advice("more_adapters_than_slots", _more_adapters_than_slots(budget, adapters))
    if adapters > budget.slots + budget.staged:
        yield Advice("more_adapters_than_host_memory", _more_adapters_than_host_memory(budget, adapters))
    if adapters < budget.slots:
        idle = budget.slots - adapters
        yield Advice(
            "idle_slots", f"{idle} slots stay empty with {adapters} adapters: {size(idle * budget.slot)} that could go"
        )
    if budget.slots > serving.sequences:
        yield Advice(
            "more_slots_than_sequences",
            f"at most {serving.sequences} sequences run at a time (max_num_seqs): further slots run nothing, "
            "they only save copying an adapter again that was there before",
        )
    if _slots_crowd_out(budget, serving):
        yield Advice("slots_crowd_out_kv_cache", _slots_crowd_out_message(budget))


def size(number: int) -> str:
    """Format bytes for people: binary units, three digits."""
    value, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}" if abs(value) < 1000 else f"{value:.0f} {unit}"


def _kv_cache_too_small(budget: Budget, serving: Serving) -> str:
    return (
        f"the KV cache holds {budget.kv_tokens} tokens, one sequence of max_model_len needs {serving.max_model_len}: "
        "the engine will not start; a smaller max_model_len, fewer slots, or more memory"
    )


def _padding(budget: Budget, serving: Serving) -> str:
    rank = serving.max_lora_rank
    smaller = max(other for other in RANKS if other <= max(_COMMON_RANK, rank // 4))
    return (
        f"every slot is padded to rank {rank}: {size(budget.slot)} each, of which an adapter of rank {_COMMON_RANK} "
        f"fills {size(budget.slot * _COMMON_RANK // rank)}; with max_lora_rank {smaller} the same memory holds "
        f"{rank / smaller:g} times the slots"
    )


def _more_adapters_than_slots(budget: Budget, adapters: int) -> str:
    return (
        f"{adapters} adapters share {budget.slots} slots: with visits of D seconds at most {budget.slots}/D start in a "
        f"second; evenly loaded, {budget.slots / adapters:.0%} of the visits find their adapter in a slot, each other "
        f"one copies {size(budget.slot)}"
    )


def _more_adapters_than_host_memory(budget: Budget, adapters: int) -> str:
    return (
        f"host memory keeps {budget.staged} adapters of the largest rank staged (TENORA_ENGINE__HOST_BYTES); of "
        f"{adapters} adapters {adapters - budget.slots - budget.staged} are read from the node's disk when asked for"
    )


def _slots_crowd_out(budget: Budget, serving: Serving) -> bool:
    """Return whether the KV cache gets what slots leave, and that is less than half of its size without slots."""
    return serving.kv_cache_bytes is None and budget.kv_cache < _FEW * (budget.kv_cache + budget.slots_bytes)


def _slots_crowd_out_message(budget: Budget) -> str:
    return (
        f"slots take {size(budget.slots_bytes)}, the KV cache keeps {size(max(0, budget.kv_cache))}: "
        f"{budget.sequences_typical} sequences of {TYPICAL_TOKENS} tokens at most; fewer slots would run more"
    )
