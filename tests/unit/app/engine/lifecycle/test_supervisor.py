"""Supervisor: detect engine deaths, retry failed starts, and keep a stopped engine stopped."""

import asyncio

import pytest

from app.domain.errors import EngineUnavailable
from app.engine.lifecycle.supervisor import Supervisor
from app.engine.status import EngineState


class Session:
    """Fake session; its end fails after the fact if ``stuck`` is set."""

    def __init__(self) -> None:
        self.dead, self.hung, self.stuck = asyncio.Event(), False, False
        self.ended = 0

    async def end(self) -> None:
        self.ended += 1
        if self.stuck:
            raise RuntimeError("no such process")


class Launcher:
    """Fake launcher of engine sessions; the attempts listed in ``failures`` fail."""

    def __init__(self, failures: set[int] = frozenset()) -> None:
        self.sessions: list[Session] = []
        self.attempts = 0
        self.failures = failures

    async def __call__(self) -> Session:
        self.attempts += 1
        if self.attempts in self.failures:
            raise RuntimeError("no memory")
        self.sessions.append(Session())
        return self.sessions[-1]


async def reach(supervisor: Supervisor[Session], state: EngineState, restarts: int) -> None:
    async with asyncio.timeout(10):
        while (supervisor.state, supervisor.restarts) != (state, restarts):
            await asyncio.sleep(0)


async def test_a_dead_engine_is_ended_and_replaced() -> None:
    launcher = Launcher()
    supervisor = Supervisor(launcher, backoff_s=0.001)
    await supervisor.start()
    assert supervisor.state is EngineState.READY
    launcher.sessions[0].dead.set()
    with pytest.raises(EngineUnavailable) as refused:
        _ = supervisor.session
    assert refused.value.retry_after
    await reach(supervisor, EngineState.READY, restarts=1)
    assert launcher.sessions[0].ended == 1
    assert supervisor.session is launcher.sessions[1]
    await supervisor.stop()
    assert launcher.sessions[1].ended == 1


async def test_an_engine_that_cannot_be_ended_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    launcher = Launcher()
    supervisor = Supervisor(launcher, backoff_s=0.001)
    await supervisor.start()
    launcher.sessions[0].stuck = True
    launcher.sessions[0].dead.set()
    await reach(supervisor, EngineState.READY, restarts=1)
    assert supervisor.session is launcher.sessions[1]
    assert "no such process" in caplog.text
    await supervisor.stop()
    assert [session.ended for session in launcher.sessions] == [1, 1]


async def test_a_server_that_leaves_can_stop_after_an_end_that_failed() -> None:
    launcher = Launcher()
    supervisor = Supervisor(launcher, backoff_s=0.001)
    await supervisor.start()
    supervisor.leave()
    launcher.sessions[0].stuck = True
    launcher.sessions[0].dead.set()
    await reach(supervisor, EngineState.STOPPED, restarts=0)
    await supervisor.stop()
    assert (launcher.attempts, launcher.sessions[0].ended) == (1, 1)


async def test_a_hung_engine_is_counted_as_one() -> None:
    launcher = Launcher()
    supervisor = Supervisor(launcher, backoff_s=0.001)
    await supervisor.start()
    for restarts, hung in enumerate((True, False), start=1):
        launcher.sessions[-1].hung = hung
        launcher.sessions[-1].dead.set()
        await reach(supervisor, EngineState.READY, restarts=restarts)
        assert supervisor.hangs == 1
    await supervisor.stop()


async def test_a_restart_that_fails_is_tried_again() -> None:
    launcher = Launcher(failures={2, 3})
    supervisor = Supervisor(launcher, backoff_s=0.001)
    await supervisor.start()
    launcher.sessions[0].dead.set()
    await reach(supervisor, EngineState.READY, restarts=1)
    assert launcher.attempts == 4
    await supervisor.stop()


async def test_a_first_start_that_fails_is_the_callers() -> None:
    supervisor = Supervisor(Launcher(failures={1}), backoff_s=0.001)
    with pytest.raises(RuntimeError, match="no memory"):
        await supervisor.start()
    assert supervisor.state is EngineState.STOPPED


async def test_stopping_ends_the_life_and_starts_none() -> None:
    launcher = Launcher()
    supervisor = Supervisor(launcher, backoff_s=0.001)
    await supervisor.start()
    await supervisor.stop()
    assert (supervisor.state, launcher.attempts, launcher.sessions[0].ended) == (EngineState.STOPPED, 1, 1)
    with pytest.raises(EngineUnavailable):
        _ = supervisor.session


async def test_a_leaving_server_starts_no_other_engine() -> None:
    launcher = Launcher()
    supervisor = Supervisor(launcher, backoff_s=0.001)
    await supervisor.start()
    supervisor.leave()
    assert supervisor.state is EngineState.READY
    assert supervisor.session is launcher.sessions[0]
    launcher.sessions[0].dead.set()
    await reach(supervisor, EngineState.STOPPED, restarts=0)
    assert (launcher.attempts, launcher.sessions[0].ended) == (1, 1)
    await supervisor.stop()
    assert (launcher.attempts, launcher.sessions[0].ended) == (1, 1)


async def test_a_launch_under_way_is_given_up_once_the_server_leaves() -> None:
    begun, given_up = asyncio.Event(), asyncio.Event()
    first = Session()

    async def launch() -> Session:
        if not first.dead.is_set():
            return first
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            # Ending processes takes time, and the stop that follows must not interrupt it.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            given_up.set()
        raise AssertionError

    supervisor = Supervisor(launch, backoff_s=0.001)
    await supervisor.start()
    first.dead.set()
    await begun.wait()
    supervisor.leave()
    await supervisor.stop()
    assert given_up.is_set()
    assert supervisor.state is EngineState.STOPPED


async def test_a_shutdown_does_not_wait_for_a_retry_pause() -> None:
    launcher = Launcher(failures={2})
    supervisor = Supervisor(launcher, backoff_s=600)
    await supervisor.start()
    launcher.sessions[0].dead.set()
    async with asyncio.timeout(10):
        while launcher.attempts < 2:
            await asyncio.sleep(0)
    supervisor.leave()
    async with asyncio.timeout(10):
        await supervisor.stop()
    assert launcher.attempts == 2
