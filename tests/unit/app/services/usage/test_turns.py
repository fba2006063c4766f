"""Turns with queries over usage records."""

import asyncio

import pytest

from app.domain.errors import Busy
from app.services.usage import turns
from app.services.usage.turns import UsageTurns


async def test_a_tenant_that_waits_holds_up_no_other() -> None:
    usage_turns, order = UsageTurns(), list[str]()

    async def query(tenant: str | None, name: str) -> None:
        async with usage_turns.turn(tenant):
            order.append(name)

    async with usage_turns.turn("pricing"):
        second = asyncio.create_task(query("pricing", "second of pricing"))
        await asyncio.sleep(0)
        await query("stock", "stock")
        await query(None, "platform")
    await second
    assert order == ["stock", "platform", "second of pricing"]


async def test_a_turn_that_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_PATIENCE_S", 0.01)
    usage_turns = UsageTurns()
    async with usage_turns.turn("pricing"):
        with pytest.raises(Busy) as refused:
            async with usage_turns.turn("pricing"):
                raise AssertionError
        assert refused.value.retry_after == 2
    async with usage_turns.turn("pricing"):
        pass
