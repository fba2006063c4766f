"""The CPU kernel against vLLM's own, and against the arithmetic that both stand for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.lora.layers import LoRAMapping
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from app.engine.grouped_lora import GroupedPunicaWrapper

MAX_RANK, INPUT, SLICES = 16, 24, (20, 8, 8)


class Batch:
    """Slots with adapters of several ranks, and tokens that use some of them.

    Args:
        tokens: per token the slot that it uses, or None for the base.
    """

    def __init__(self, ranks: list[int], tokens: list[int | None], dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(len(tokens))
        self.ids: list[int | None] = [10 + slot for slot in range(len(ranks))]
        self.ranks = {10 + slot: rank for slot, rank in enumerate(ranks)}
        self.a = tuple(torch.zeros(len(ranks), 1, MAX_RANK, INPUT, dtype=dtype) for _ in SLICES)
        self.b = tuple(torch.zeros(len(ranks), 1, width, MAX_RANK, dtype=dtype) for width in SLICES)
        for slot, rank in enumerate(ranks):
            for a, b in zip(self.a, self.b, strict=True):
                a[slot, 0, :rank] = torch.randn(rank, INPUT) / INPUT**0.5
                b[slot, 0, :, :rank] = torch.randn(b.shape[2], rank) / rank**0.5
        self.tokens = tokens
        self.x = torch.randn(len(tokens), INPUT).to(dtype)
        self.y = torch.randn(len(tokens), sum(SLICES)).to(dtype)

    def applied(self, wrapper: PunicaWrapperCPU, *, is_prefill: bool = False) -> torch.Tensor:
        mapping = tuple(0 if slot is None else 10 + slot for slot in self.tokens)
        wrapper.update_metadata(LoRAMapping(mapping, mapping, is_prefill=is_prefill), self.ids, len(self.ids) + 1, 100)
        y = self.y.clone()
        wrapper.add_lora_linear(y, self.x, self.a, self.b, 1.0, SLICES)
        return y

    def expected(self) -> torch.Tensor:
        """Token by token in double precision."""
        y = self.y.double()
        for row, slot in enumerate(self.tokens):
            if slot is not None:
                deltas = [b[slot, 0].double() @ (a[slot, 0].double() @ self.x[row].double()) for a, b in self.pairs]
                y[row] += torch.cat(deltas)
        return y

    @property
    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(self.a, self.b, strict=True))

    def grouped(self) -> GroupedPunicaWrapper:
        return GroupedPunicaWrapper(2048, 2048, "cpu", rank_of=lambda version_id: self.ranks[version_id or 0])


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.lists(st.integers(1, MAX_RANK), min_size=1, max_size=12),
    places=st.lists(st.integers(-3, 11), min_size=1, max_size=40),
)
def test_every_token_gets_its_own_adapter_and_the_base_none(ranks: list[int], places: list[int]) -> None:
    batch = Batch(ranks, [place % len(ranks) if place >= 0 else None for place in places])
    torch.testing.assert_close(batch.applied(batch.grouped()).double(), batch.expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_prefill", [True, False])
@pytest.mark.parametrize("tokens", [[0], [0, 0, 0], [2, 0, 1, 1, 2], list(range(12)) * 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_computes_what_vllms_wrapper_does(tokens: list[int], is_prefill: bool, dtype: torch.dtype) -> None:
    batch = Batch([8, 16, 3, *[8] * 9], list(tokens), dtype)
    theirs = batch.applied(PunicaWrapperCPU(512, 512, "cpu"), is_prefill=is_prefill)
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 5e-2, "atol": 5e-2}
    torch.testing.assert_close(batch.applied(batch.grouped(), is_prefill=is_prefill), theirs, **close)


def test_both_ways_of_the_product_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    choose = GroupedPunicaWrapper._copying_is_cheaper
    monkeypatch.setattr(
        GroupedPunicaWrapper,
        "_copying_is_cheaper",
        lambda self, a, b: taken.append(choose(self, a, b)) or taken[-1],
    )
    for slots, repeats in ((12, 1), (2, 600)):
        batch = Batch([8] * slots, list(range(slots)) * repeats)
        torch.testing.assert_close(batch.applied(batch.grouped()).double(), batch.expected(), rtol=1e-4, atol=1e-5)
    assert set(taken) == {True, False}


def test_tokens_of_the_base_stay_as_they_are_where_vllm_gives_them_the_last_slots_adapter() -> None:
    batch = Batch([8, 8], [None, 0, None])
    ours, theirs = batch.applied(batch.grouped()), batch.applied(PunicaWrapperCPU(512, 512, "cpu"))
    assert torch.equal(ours[0], batch.y[0])
    assert torch.equal(ours[2], batch.y[2])
    assert not torch.equal(theirs[0], batch.y[0]), "vllm#48421 is there no more: this module has one reason less"


@pytest.mark.parametrize("copying", [True, False])
@pytest.mark.parametrize("factor", ["a", "b"])
@pytest.mark.parametrize("tokens", [[0, 1, None, 2, 1], [0, 1, 2, 2, 1], [1, None], [1, 1]])
def test_a_nan_adapter_stays_with_its_own_tokens(
    tokens: list[int | None], factor: str, copying: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupedPunicaWrapper, "_copying_is_cheaper", lambda *_: copying)
    batch = Batch([8, 16, 3], tokens)
    for weights in getattr(batch, factor):
        weights[1] = float("nan")
    y = batch.applied(batch.grouped())
    for row, slot in enumerate(tokens):
        assert y[row].isnan().all() if slot == 1 else y[row].isfinite().all()
