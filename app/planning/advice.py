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
            f"{size(missing)} of memory are missing. Use fewer slots, a smaller max_lora_rank, or more memory.",
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
            "idle_slots",
            f"{idle} slots stay empty with {adapters} adapters and take {size(idle * budget.slot)}. Use fewer slots.",
        )
    if budget.slots > serving.sequences:
        yield Advice(
            "more_slots_than_sequences",
            f"At most {serving.sequences} sequences run at the same time (max_num_seqs). Further slots only keep "
            "adapters that would otherwise be copied again.",
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
        f"The KV cache holds {budget.kv_tokens} tokens, but a sequence of max_model_len needs {serving.max_model_len}. "
        "The engine will not start. Use a smaller max_model_len, fewer slots, or more memory."
    )


def _padding(budget: Budget, serving: Serving) -> str:
    rank = serving.max_lora_rank
    smaller = max(other for other in RANKS if other <= max(_COMMON_RANK, rank // 4))
    return (
        f"Every slot is padded to rank {rank} and takes {size(budget.slot)}. An adapter of rank {_COMMON_RANK} fills "
        f"{size(budget.slot * _COMMON_RANK // rank)} of it. With max_lora_rank {smaller}, the same memory holds "
        f"{rank / smaller:g} times the slots."
    )


def _more_adapters_than_slots(budget: Budget, adapters: int) -> str:
    return (
        f"{adapters} adapters share {budget.slots} slots. With visits of D seconds, at most {budget.slots}/D visits "
        f"start per second. At even load, {budget.slots / adapters:.0%} of the visits find their adapter in a slot, "
        f"and every other visit copies {size(budget.slot)}."
    )


def _more_adapters_than_host_memory(budget: Budget, adapters: int) -> str:
    return (
        f"Host memory keeps {budget.staged} adapters of the largest rank staged (TENORA_ENGINE__HOST_BYTES). Of "
        f"{adapters} adapters, {adapters - budget.slots - budget.staged} are read from the node's disk when requested."
    )


def _slots_crowd_out(budget: Budget, serving: Serving) -> bool:
    """Return whether the KV cache gets what slots leave, and that is less than half of its size without slots."""
    return serving.kv_cache_bytes is None and budget.kv_cache < _FEW * (budget.kv_cache + budget.slots_bytes)


def _slots_crowd_out_message(budget: Budget) -> str:
    return (
        f"Slots take {size(budget.slots_bytes)} and leave {size(max(0, budget.kv_cache))} for the KV cache. It holds "
        f"at most {budget.sequences_typical} sequences of {TYPICAL_TOKENS} tokens. Fewer slots allow more sequences."
    )
