"""Single-flight: concurrent look-ups of the same key share one call."""

import asyncio

import pytest

from app.support.single_flight import SingleFlight


class Calls:
    """Calls that end on the test's signal.

    Attributes:
        made: number of calls so far.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.made, self.may_end, self._error = 0, asyncio.Event(), error

    async def __call__(self) -> int:
        self.made += 1
        number = self.made
        await self.may_end.wait()
        if self._error:
            raise self._error
        return number


async def waiting(shared: SingleFlight[int], calls: Calls, *keys: str) -> list[asyncio.Task[int]]:
    """Start tasks that look up these keys, and return them once all wait."""
    tasks = [asyncio.create_task(shared.run(key, calls)) for key in keys]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_those_who_come_meanwhile_share_a_call() -> None:
    shared, calls = SingleFlight[int](), Calls()
    tasks = await waiting(shared, calls, "a", "a", "b", "a")
    calls.may_end.set()
    assert await asyncio.gather(*tasks) == [1, 1, 2, 1]


async def test_who_comes_later_makes_a_new_one() -> None:
    shared, calls = SingleFlight[int](), Calls()
    calls.may_end.set()
    assert [await shared.run("a", calls), await shared.run("a", calls)] == [1, 2]


async def test_all_hear_of_its_error_and_the_next_tries_again() -> None:
    shared, failing = SingleFlight[int](), Calls(ValueError("x"))
    tasks = await waiting(shared, failing, "a", "a")
    failing.may_end.set()
    assert [str(error) for error in await asyncio.gather(*tasks, return_exceptions=True)] == ["x", "x"]
    calls = Calls()
    calls.may_end.set()
    assert await shared.run("a", calls) == 1


async def test_it_ends_although_who_began_it_went_away() -> None:
    shared, calls = SingleFlight[int](), Calls()
    first, second = await waiting(shared, calls, "a", "a")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    calls.may_end.set()
    assert await second == 1


async def test_an_error_that_nobody_waits_for_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    shared, failing = SingleFlight[int](), Calls(ValueError("x"))
    (task,) = await waiting(shared, failing, "a")
    task.cancel()
    failing.may_end.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert task.cancelled()
    assert caplog.records == []
