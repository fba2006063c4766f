"""Watchdog: a call without an answer ends it; slow answers, errors and pauses of this process do not."""

import asyncio
import time

import pytest

from app.domain.errors import EngineUnavailable
from app.engine.vllm.watchdog import until_silent, while_alive

SILENCE_S = 0.1


class Engine:
    """Fake engine that answers a number of calls and then hangs."""

    def __init__(self, answers: int) -> None:
        self.answers, self.calls = answers, 0

    async def __call__(self) -> None:
        self.calls += 1
        if self.calls > self.answers:
            await asyncio.Event().wait()


@pytest.mark.parametrize("answers", [0, 3])
async def test_the_first_call_without_an_answer_ends_the_watch(answers: int) -> None:
    engine = Engine(answers)
    await asyncio.wait_for(until_silent(engine, SILENCE_S), 30)
    assert engine.calls == answers + 1


async def test_a_call_that_fails_says_so_itself() -> None:
    async def dead() -> None:
        raise EngineUnavailable("dead")

    with pytest.raises(EngineUnavailable):
        await until_silent(dead, SILENCE_S)


async def test_a_pause_of_this_process_is_no_silence_of_the_engine() -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def call() -> None:
        asked.set()
        await answered.wait()
        for _ in range(20):  # an answer takes several turns of the event loop
            await asyncio.sleep(0)

    watch = asyncio.create_task(until_silent(call, SILENCE_S))
    await asked.wait()
    asyncio.get_running_loop().call_soon(answered.set)
    time.sleep(3 * SILENCE_S)  # noqa: ASYNC251 - nothing of this process may go on
    asked.clear()
    await asyncio.wait({watch, again := asyncio.create_task(asked.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert again.done()
    assert not watch.done()
    watch.cancel()


async def test_a_watch_that_is_called_off_leaves_no_call_behind() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def call() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    watch = asyncio.create_task(until_silent(call, 60))
    await begun.wait()
    watch.cancel()
    await asyncio.wait_for(ended.wait(), 30)


async def test_a_call_that_a_dead_engine_will_never_answer_is_given_up() -> None:
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    looked = []

    def died() -> bool:
        looked.append(None)
        return len(looked) > 2

    with pytest.raises(EngineUnavailable):
        await while_alive(died, never)
    assert never.cancelled()


async def test_what_a_living_engine_answers_comes_through() -> None:
    async def answer(error: Exception | None = None) -> int:
        await asyncio.sleep(0)
        if error:
            raise error
        return 7

    assert await while_alive(lambda: False, answer()) == 7
    with pytest.raises(KeyError):
        await while_alive(lambda: False, answer(KeyError("its own")))
