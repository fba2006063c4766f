"""CPU LoRA kernel compared with vLLM's kernel and with reference arithmetic."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.lora.layers import LoRAMapping
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from app.engine.vllm.worker.cpu_lora import GroupedPunicaWrapper, lay_out

MAX_RANK, INPUT, SLICES = 16, 24, (20, 8, 8)


class Batch:
    """Batch of tokens over slots with adapters of several ranks.

    Args:
        tokens: slot of each token; None for the base.
    """

    def __init__(self, ranks: list[int], tokens: list[int | None], dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(len(tokens))
        self.ids: list[int | None] = [10 + slot for slot in range(len(ranks))]
        self.ranks = {10 + slot: rank for slot, rank in enumerate(ranks)}
        self.a = tuple(torch.zeros(len(ranks), 1, MAX_RANK, INPUT, dtype=dtype) for _ in SLICES)
        self.b = tuple(lay_out(torch.zeros(len(ranks), 1, width, MAX_RANK, dtype=dtype)) for width in SLICES)
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
        """Compute the reference result token by token in double precision."""
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
        return GroupedPunicaWrapper(
            2048,
            2048,
            "cpu",
            max_rank=MAX_RANK,
            rank_of=lambda version_id: self.ranks[version_id or 0],
            is_finite=lambda: all(bool(b.isfinite().all()) for b in self.b),
        )


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.lists(st.integers(1, MAX_RANK), min_size=1, max_size=12),
    places=st.lists(st.integers(-3, 11), min_size=1, max_size=40),
)
def test_every_token_gets_its_own_adapter_and_the_base_none(ranks: list[int], places: list[int]) -> None:
    batch = Batch(ranks, [place % len(ranks) if place >= 0 else None for place in places])
    torch.testing.assert_close(batch.applied(batch.grouped()).double(), batch.expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_prefill", [True, False])
@pytest.mark.parametrize("tokens", [[0], [0, 0, 0], [2, 0, 1, 1, 2], list(range(12)) * 3, [0, 1, 2] * 150])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_computes_what_vllms_wrapper_does(tokens: list[int], is_prefill: bool, dtype: torch.dtype) -> None:
    batch = Batch([8, 16, 3, *[8] * 9], list(tokens), dtype)
    theirs = batch.applied(PunicaWrapperCPU(512, 512, "cpu"), is_prefill=is_prefill)
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 5e-2, "atol": 5e-2}
    torch.testing.assert_close(batch.applied(batch.grouped(), is_prefill=is_prefill), theirs, **close)


@pytest.mark.parametrize(
    ("way", "slots", "tokens"),
    [
        ("slots as they lie", 4, [0, 1, 3, 3]),
        ("slots that are copied", 40, [0, 20]),
        ("one slot", 4, [None, 2, 2]),
        ("slots as they lie", 2, [0, 1] * 600),
        ("group by group", 5, list(range(5)) * 400),
        ("token by token", 40, list(range(40))),
    ],
)
def test_every_way_of_the_product_is_taken(
    way: str, slots: int, tokens: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, taken = Batch([8] * slots, tokens), set[str]()
    for name in ("_group_by_group", "_token_by_token"):
        product = getattr(GroupedPunicaWrapper, name)
        words = name.strip("_").replace("_", " ")
        monkeypatch.setattr(
            GroupedPunicaWrapper, name, lambda *args, product=product, words=words: taken.add(words) or product(*args)
        )
    wrapper = batch.grouped()
    torch.testing.assert_close(batch.applied(wrapper).double(), batch.expected(), rtol=1e-4, atol=1e-5)
    if not taken and wrapper._together:
        kinds = {int: "one slot", type(None): "slots as they lie", torch.Tensor: "slots that are copied"}
        taken.add(kinds[type(wrapper._together.slots)])
    assert taken == {way}


def test_what_is_laid_out_is_the_same_memory() -> None:
    stacked = torch.zeros(3, 1, 20, 16)
    laid = lay_out(stacked)
    assert (laid.shape, laid.data_ptr()) == (stacked.shape, stacked.data_ptr())
    assert laid[:, 0].transpose(1, 2).is_contiguous()


def test_base_tokens_get_no_adapter_of_the_last_slot() -> None:
    batch = Batch([8, 8], [None, 0, None])
    ours, theirs = batch.applied(batch.grouped()), batch.applied(PunicaWrapperCPU(512, 512, "cpu"))
    assert torch.equal(ours[0], batch.y[0])
    assert torch.equal(ours[2], batch.y[2])
    assert not torch.equal(theirs[0], batch.y[0]), "vllm#48421 is there no more: this module has one reason less"


@pytest.mark.parametrize("copying", [True, False])
@pytest.mark.parametrize(("factor", "value"), [("a", float("nan")), ("a", 3e38), ("b", float("nan")), ("b", 3e38)])
@pytest.mark.parametrize("tokens", [[0, 1, None, 2, 1], [0, 1, 2, 2, 1], [1, None], [1, 1], [0, 2, None]])
def test_an_overflow_stays_with_its_own_tokens(
    tokens: list[int | None], factor: str, value: float, copying: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes an unused slot: a released slot still holds the old weights."""
    monkeypatch.setattr(GroupedPunicaWrapper, "_copying_is_cheaper", lambda *_: copying)
    batch = Batch([8, 16, 3], tokens)
    batch.x.abs_().add_(1)
    for weights in getattr(batch, factor):
        weights[1] = value
    y = batch.applied(batch.grouped())
    for row, slot in enumerate(tokens):
        assert not y[row].isfinite().any() if slot == 1 else y[row].isfinite().all()


class Head:
    """LoRA of the head, with one row per sequence of a batch."""

    VOCABULARY = 37

    def __init__(self, ranks: list[int], rows: list[int | None]) -> None:
        torch.manual_seed(len(rows))
        self.batch, self.rows = Batch(ranks, rows), rows
        self.a = torch.zeros(len(ranks), 1, MAX_RANK, INPUT)
        self.b = torch.zeros(len(ranks), 1, self.VOCABULARY, MAX_RANK)
        for slot, rank in enumerate(ranks):
            self.a[slot, 0, :rank] = torch.randn(rank, INPUT)
            self.b[slot, 0, :, :rank] = torch.randn(self.VOCABULARY, rank)
        # The base's logits are padded.
        self.logits = torch.randn(len(rows), self.VOCABULARY + 3)

    def applied(self, wrapper: PunicaWrapperCPU, x: torch.Tensor | None = None) -> torch.Tensor:
        mapping = tuple(0 if slot is None else 10 + slot for slot in self.rows)
        ids = self.batch.ids
        wrapper.update_metadata(LoRAMapping(mapping, mapping, is_prefill=True), ids, len(ids) + 1, 100)
        logits = self.logits.clone()
        wrapper.add_lora_logits(logits, self.batch.x if x is None else x, self.a, self.b, 1.0)
        return logits

    def expected(self) -> torch.Tensor:
        logits = self.logits.double()
        for row, slot in enumerate(self.rows):
            if slot is not None:
                delta = self.b[slot, 0].double() @ (self.a[slot, 0].double() @ self.batch.x[row].double())
                logits[row, : self.VOCABULARY] += delta
        return logits


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.lists(st.integers(1, MAX_RANK), min_size=1, max_size=6),
    places=st.lists(st.integers(-3, 5), min_size=1, max_size=20),
)
def test_every_sequence_gets_its_own_adapters_head(ranks: list[int], places: list[int]) -> None:
    head = Head(ranks, [place % len(ranks) if place >= 0 else None for place in places])
    found = head.applied(head.batch.grouped())
    torch.testing.assert_close(found.double(), head.expected(), rtol=1e-4, atol=1e-3)
    for row, slot in enumerate(head.rows):
        if slot is None:
            assert torch.equal(found[row], head.logits[row])


def test_heads_equal_vllms_where_all_have_an_adapter() -> None:
    head = Head([8, 3, 16], [0, 2, 1, 1, 0])
    theirs = head.applied(PunicaWrapperCPU(512, 512, "cpu"))
    torch.testing.assert_close(head.applied(head.batch.grouped()), theirs, rtol=1e-4, atol=1e-3)


def test_rows_whose_adapters_are_not_known_are_never_guessed() -> None:
    head = Head([8, 8], [0, 1])
    with pytest.raises(RuntimeError, match="logits of 5 rows, but adapters of 2"):
        head.applied(head.batch.grouped(), torch.randn(5, INPUT))
