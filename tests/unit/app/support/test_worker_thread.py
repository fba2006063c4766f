"""Worker thread: runs calls of an event loop in order, one at a time."""

import asyncio
import threading
import time
from functools import partial

import pytest

from app.support.worker_thread import WorkerThread


@pytest.fixture
def thread():
    made = WorkerThread("test-work")
    yield made
    made.end()


def names() -> set[str]:
    return {one.name for one in threading.enumerate()}


async def test_it_gives_back_what_its_functions_give_in_their_order(thread):
    seen = list[int]()

    def work(number: int) -> int:
        time.sleep(0.001 * (3 - number % 3))
        seen.append(number)
        return -number

    assert await asyncio.gather(*(thread.run(partial(work, number)) for number in range(20))) == [
        -number for number in range(20)
    ]
    assert seen == list(range(20))


async def test_an_error_is_that_of_who_waits_and_of_nobody_else(thread):
    def fail() -> None:
        raise OSError("no space left")

    failed, done = await asyncio.gather(thread.run(fail), thread.run(lambda: 1), return_exceptions=True)
    assert isinstance(failed, OSError)
    assert done == 1


async def test_what_nobody_waits_for_any_more_is_done_all_the_same(thread):
    may_go_on, done = threading.Event(), list[int]()
    held = asyncio.create_task(thread.run(may_go_on.wait))
    given_up = asyncio.create_task(thread.run(partial(done.append, 1)))
    await asyncio.sleep(0)
    given_up.cancel()
    held.cancel()
    await asyncio.gather(held, given_up, return_exceptions=True)
    may_go_on.set()
    assert await thread.run(lambda: len(done)) == 1


async def test_it_begins_with_its_first_work_and_ends_with_its_last():
    thread, done = WorkerThread("test-begin"), list[int]()
    assert "test-begin" not in names()
    work = asyncio.create_task(thread.run(partial(_slowly, done)))
    await asyncio.sleep(0)
    assert "test-begin" in names()
    thread.end()
    assert (done, "test-begin" in names()) == ([1], False)
    await work


def _slowly(done: list[int]) -> None:
    time.sleep(0.05)
    done.append(1)


def test_a_loop_that_is_gone_ends_nothing():
    thread, may_go_on, done = WorkerThread("test-gone"), threading.Event(), list[int]()

    async def ask() -> None:
        task = asyncio.create_task(thread.run(may_go_on.wait))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(ask())
    may_go_on.set()
    assert asyncio.run(thread.run(partial(done.append, 1))) is None
    assert done == [1]
    thread.end()
