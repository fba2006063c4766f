"""Memory budget: all bytes are accounted for, and slots reduce the KV cache."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.planning.base import plan_base
from app.planning.budget import GIB, Machine, Serving, budget_of, kv_bytes_for, kv_token_bytes, slot_bytes
from app.planning.slots import memory_for_slots, slots_for
from tests.support.base_configs import LARGE, TOY

BASES = {"toy": plan_base(TOY), "large": plan_base(LARGE)}
GPU = Machine(80 * GIB, cpu=False)
ON_GPU = Serving(64, 8192, sequences=1024, batched_tokens=8192, kv_cache_bytes=None, host_bytes=4 * GIB)
ON_CPU = replace(ON_GPU, sequences=128, batched_tokens=2048, kv_cache_bytes=GIB, max_model_len=512)

bases = st.sampled_from(sorted(BASES)).map(BASES.__getitem__)
memories = st.integers(2**28, 2**42)
ranks = st.sampled_from([1, 8, 16, 32, 64, 128, 256, 320, 512])


@st.composite
def servings(draw, *, cpu):
    return replace(
        ON_CPU if cpu else ON_GPU,
        max_lora_rank=draw(ranks),
        max_model_len=draw(st.integers(16, 2**17)),
        tensor_parallel_size=draw(st.sampled_from([1, 2, 4, 8])),
    )


@st.composite
def situations(draw):
    cpu = draw(st.booleans())
    return draw(bases), Machine(draw(memories), cpu=cpu), draw(servings(cpu=cpu))


@pytest.mark.parametrize(("rank", "megabytes"), [(16, 84), (64, 336)])
def test_a_slot_of_llama_3_8b(rank, megabytes):
    assert round(slot_bytes(BASES["large"], rank) / 1e6) == megabytes


def test_a_token_of_llama_3_8b():
    assert kv_token_bytes(BASES["large"]) == 128 * 1024
    assert kv_token_bytes(BASES["large"], 4) == 32 * 1024
    assert kv_token_bytes(BASES["large"], 16) == 16 * 1024, "each head is kept twice"


@given(situations(), st.integers(1, 1024))
def test_every_byte_is_somewhere(situation, slots):
    base, machine, serving = situation
    budget = budget_of(base, machine, serving, slots)
    parts = budget.weights + budget.slots_bytes + budget.reserve + budget.host + budget.kv_cache + budget.left
    assert parts == budget.memory
    assert budget.slots_bytes == slots * budget.slot
    assert budget.kv_tokens * budget.kv_token <= max(0, budget.kv_cache)


@given(situations(), st.integers(1, 1000))
def test_more_slots_never_run_more(situation, slots):
    base, machine, serving = situation
    fewer, more = (budget_of(base, machine, serving, number) for number in (slots, slots + 1))
    assert more.sequences_full <= fewer.sequences_full <= serving.sequences
    assert more.sequences_typical <= fewer.sequences_typical <= serving.sequences


@given(bases, st.booleans(), st.integers(16, 2**17))
def test_the_smallest_cache_for_a_sequence_is_the_smallest(base, cpu, tokens):
    machine = Machine(2**42, cpu=cpu)
    serving = replace(ON_CPU, max_model_len=tokens)
    needed = kv_bytes_for(base, machine, serving, tokens)
    for size, expected in ((needed, 1), (needed - 1, 0)):
        budget = budget_of(base, machine, replace(serving, kv_cache_bytes=size), 1)
        assert budget.sequences_full == expected


@given(situations())
def test_auto_leaves_a_sequence_its_cache(situation):
    base, machine, serving = situation
    slots = slots_for(base, machine, serving)
    assert 1 <= slots <= 1024
    if slots > 1:
        budget = budget_of(base, machine, serving, slots)
        assert budget.left >= 0
        assert budget.slots_bytes <= memory_for_slots(base, machine, serving)
        if serving.kv_cache_bytes is None:
            assert budget.sequences_full >= 1


@given(situations(), st.integers(0, 2**40))
def test_more_memory_never_means_fewer_slots(situation, more):
    base, machine, serving = situation
    larger = replace(machine, memory=machine.memory + more)
    assert slots_for(base, larger, serving) >= slots_for(base, machine, serving)


@given(situations())
def test_auto_is_a_power_of_two_or_half_as_much_again(situation):
    slots = slots_for(*situation)
    while slots % 2 == 0:
        slots //= 2
    assert slots in {1, 3}


@pytest.mark.parametrize(("gib", "rank", "slots"), [(24, 64, 4), (80, 64, 32), (80, 16, 64), (141, 128, 32)])
def test_auto_for_an_8b_base_on_a_gpu(gib, rank, slots):
    serving = replace(ON_GPU, max_lora_rank=rank)
    if gib < 70:
        serving = replace(serving, sequences=256, batched_tokens=2048)
    assert slots_for(BASES["large"], Machine(gib * GIB, cpu=False), serving) == slots


def test_auto_for_a_toy_base_holds_more_than_a_batch():
    assert slots_for(BASES["toy"], Machine(16 * GIB, cpu=True), ON_CPU) == 1024


def test_staged_adapters_share_memory_only_without_a_gpu():
    for machine, serving, expected in ((GPU, ON_GPU, 0), (Machine(80 * GIB, cpu=True), ON_CPU, 4 * GIB)):
        assert budget_of(BASES["toy"], machine, serving, 1).host == expected
