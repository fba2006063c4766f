"""Pace of background work: it pauses as long as it worked."""

import asyncio

from app.services.batches.pacing import WORK_S, Pace


async def test_it_pauses_after_some_work_and_not_before() -> None:
    now, turns = 0.0, []
    pace = Pace(monotonic=lambda: now)
    loop = asyncio.get_running_loop()
    loop.call_soon(turns.append, "other work")
    await pace.step()
    assert turns == []
    now += WORK_S
    await pace.step()
    assert turns == ["other work"]
    # The pause is no work.
    loop.call_soon(turns.append, "more")
    await pace.step()
    assert turns == ["other work"]
