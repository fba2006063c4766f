"""Slot changes that wait for the same step are batched into one call, in order of request."""

import asyncio
import random
from typing import Any

from app.domain.errors import AdapterLoadFailed, EngineUnavailable
from app.engine.residency.transfer import Transfers
from tests.support.workers import Desk, Versions, Workers


class Recording(Workers):
    """Fake worker that records the versions of each copy call."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[int | None]] = []
        self.staged = {1, 2, 3}

    async def call_workers(self, method: str, *args: Any) -> list[Any]:
        self.asked.append([version_id for version_id, _ in args[0]])
        return await super().call_workers(method, *args)


async def test_changes_that_wait_for_the_same_step_go_together(version: Versions) -> None:
    workers = Recording()
    workers.pieces = 1
    transfers = Transfers(workers)
    await asyncio.gather(transfers.place(version(1), ()), transfers.place(version(2), ()))
    await transfers.place(version(3), (version(1),))
    assert workers.asked == [[1, 2], [3]]
    assert workers.held == workers.named == {2, 3}


async def test_what_is_not_done_in_one_step_is_asked_for_again(version: Versions) -> None:
    workers = Recording()
    transfers = Transfers(workers)
    await asyncio.gather(transfers.place(version(1), ()), transfers.place(version(2), ()))
    assert workers.asked == [[1, 2], [1, 2], [2]]


async def test_one_that_fails_harms_no_other(version: Versions) -> None:
    workers = Recording()
    workers.uncopyable = {2}
    transfers = Transfers(workers)
    outcomes = await asyncio.gather(
        *(transfers.place(version(number), ()) for number in (1, 2, 3)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), AdapterLoadFailed, type(None)]
    assert workers.held == workers.named == {1, 3}


async def test_a_failed_worker_is_no_fault_of_the_versions(version: Versions) -> None:
    class Broken(Recording):
        def change_slots(self, changes: list[tuple[int | None, list[int]]], budget_s: float) -> list[str]:
            raise RuntimeError("whatever")

    transfers = Transfers(Broken())
    outcomes = await asyncio.gather(
        transfers.place(version(1), ()), transfers.take_out(version(2)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [EngineUnavailable] * 2


async def test_of_two_workers_the_slower_one_is_waited_for(version: Versions) -> None:
    class Two(Recording):
        async def call_workers(self, method: str, *args: Any) -> list[Any]:
            (outcomes,) = await super().call_workers(method, *args)
            return [outcomes, outcomes if len(self.asked) > 2 else []]

    workers = Two()
    workers.pieces = 1
    placed = Transfers(workers).place(version(1), ())
    await placed
    assert workers.asked == [[1], [1], [1]]


async def test_a_leased_version_always_has_a_slot(desk: Desk, workers: Workers, version: Versions) -> None:
    """Six versions on two slots: evictions race with new leases of the same version."""
    chance = random.Random(11)

    async def ask(number: int) -> None:
        version_id = chance.randint(1, 6)
        await asyncio.sleep(chance.random() / 50)
        lease = await desk.lease(f"r{number}", version(version_id))
        assert version_id in workers.held & workers.named
        await asyncio.sleep(chance.random() / 500)
        assert version_id in workers.held & workers.named
        lease.release()

    async with asyncio.timeout(60):
        await asyncio.gather(*map(ask, range(400)))
    assert not desk.loader._leaving
    assert set(desk.loader._keys) == workers.held
