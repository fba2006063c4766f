"""Planning advice: its conditions, and the budget's numbers in it."""

from dataclasses import replace

import pytest

from app.planning.advice import advise, size
from app.planning.base import plan_base
from app.planning.budget import GIB, Machine, Serving, budget_of
from tests.support.base_configs import LARGE

BASE = plan_base(LARGE)
MACHINE = Machine(80 * GIB, cpu=False)
SERVING = Serving(64, 8192, sequences=1024, batched_tokens=8192, kv_cache_bytes=None, host_bytes=4 * GIB)


def advice(slots, adapters, machine=MACHINE, **changes):
    serving = replace(SERVING, **changes)
    return {one.code: one.message for one in advise(budget_of(BASE, machine, serving, slots), serving, adapters)}


def test_a_budget_without_trouble_gets_none():
    assert advice(32, 32, max_lora_rank=8) == {}


def test_padding_is_counted():
    said = advice(32, 32)["padding"]
    for part in ("rank 64", "takes 320 MiB", "rank 8 fills 40 MiB", "max_lora_rank 16", "4 times"):
        assert part in said


def test_more_adapters_than_slots_and_than_host_memory():
    said = advice(32, 200)
    assert "200 adapters share 32 slots" in said["more_adapters_than_slots"]
    assert "16%" in said["more_adapters_than_slots"]
    # 4 GiB hold 12 adapters of 320 MiB.
    assert "keeps 12 adapters" in said["more_adapters_than_host_memory"]
    assert "156 are read" in said["more_adapters_than_host_memory"]


@pytest.mark.parametrize(
    ("code", "part", "given"),
    [
        ("idle_slots", "22 slots stay empty with 10 adapters", {"slots": 32, "adapters": 10}),
        ("more_slots_than_sequences", "At most 16 sequences", {"slots": 32, "adapters": 99, "sequences": 16}),
        ("slots_crowd_out_kv_cache", "Slots take 46.9 GiB", {"slots": 150, "adapters": 150}),
        ("does_not_fit", "are missing", {"slots": 300, "adapters": 300}),
        ("kv_cache_too_small", "needs 500000", {"slots": 4, "adapters": 4, "max_model_len": 500_000}),
        ("does_not_fit", "are missing", {"slots": 1, "adapters": 1, "machine": Machine(16 * GIB, cpu=False)}),
    ],
)
def test_trouble_is_named(code, part, given):
    assert part in advice(**given)[code]


def test_an_engine_that_fits_nothing_says_so_first():
    assert next(iter(advice(300, 300))) == "does_not_fit"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (40 * 2**20, "40 MiB"), (1020 * 2**20, "1020 MiB"),
     (16060522496, "15 GiB"), (-3 * GIB, "-3 GiB"), (5000 * 2**40, "5000 TiB")],
)  # fmt: skip
def test_sizes_for_people(number, text):
    assert size(number) == text
