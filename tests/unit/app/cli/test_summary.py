"""Start-up summary: six lines, whatever is known."""

from dataclasses import replace

import pytest

from app.cli.summary import Summary

READY = Summary(
    version="1.2.3",
    base="llama",
    context=8192,
    device="NVIDIA H200",
    kv_tokens=1_000_000,
    slots=32,
    max_lora_rank=64,
    adapters=1500,
    tenants=12,
    addresses=("http://127.0.0.1:8000", "http://host:8000"),
)


def test_the_six_lines() -> None:
    assert READY.lines == (
        "Tenora 1.2.3 is ready.",
        "  base       llama, 8,192 tokens of context",
        "  device     NVIDIA H200, 1,000,000 tokens of KV cache",
        "  slots      32 in the engine, for adapters of rank up to 64",
        "  adapters   1,500 of 12 tenants",
        "  addresses  http://127.0.0.1:8000, http://host:8000; its API is at /docs",
    )


@pytest.mark.parametrize(
    ("adapters", "tenants", "said"),
    [(0, 0, "none yet"), (1, 1, "1 of 1 tenant"), (None, None, "unknown: the registry does not answer")],
)
def test_the_line_on_adapters(adapters: int | None, tenants: int | None, said: str) -> None:
    assert replace(READY, adapters=adapters, tenants=tenants).lines[4] == f"  adapters   {said}"
