"""Requests that wait at a gateway: their order, their bounds, their release and their ends."""

import asyncio
from collections.abc import Callable

import pytest

from app.domain.errors import Busy, EngineUnavailable, QueueFull
from app.ray.hold import Hold
from app.scheduling.admission_request import AdmissionRequest, Bounds


class Wakes:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def hold_of(
    bounds: Bounds = Bounds(),  # noqa: B008 - frozen
    wake: Callable[[], None] = lambda: None,
    longest_s: float = 60,
) -> Hold:
    return Hold(bounds, expected_start_s=30, longest_s=longest_s, wake=wake)


def request(name: str, tenant: str = "a", deadline: float | None = None) -> AdmissionRequest:
    return AdmissionRequest(name, tenant, 1.0, None, (10,), 10, deadline=deadline)


class Callers:
    """Callers whose answers begin only when the test allows it."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.released: list[str] = []
        self.may_end = asyncio.Event()
        self.most_at_once = self._at_once = 0

    def begin(self, name: str, tenant: str = "a") -> asyncio.Task[None]:
        return asyncio.ensure_future(self._run(request(name, tenant)))

    async def _run(self, held: AdmissionRequest) -> None:
        async with self._hold.turn(held):
            self.released.append(held.request_id)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            await self.may_end.wait()
            self._at_once -= 1


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_request_passes_while_a_replica_is_ready() -> None:
    hold, wakes = hold_of(), Wakes()
    hold.open(8)
    async with hold.turn(request("one")):
        assert hold.waiting == 0
    assert wakes.count == 0


async def test_a_late_tenant_goes_before_the_500th_of_another() -> None:
    hold = hold_of()
    callers = Callers(hold)
    callers.may_end.set()
    tasks = [callers.begin(f"a-{number}") for number in range(1000)]
    await settled()
    tasks.append(callers.begin("b", "b"))
    await settled()
    assert hold.waiting == 1001
    hold.open(4)
    await asyncio.gather(*tasks)
    assert callers.released.index("b") <= 4
    assert [name for name in callers.released if name != "b"] == [f"a-{number}" for number in range(1000)]
    assert hold.snapshot().tenants == ()


async def test_releases_fill_the_window_and_no_more() -> None:
    hold = hold_of()
    callers = Callers(hold)
    tasks = [callers.begin(f"a-{number}") for number in range(50)]
    await settled()
    hold.open(16)
    await settled()
    assert (len(callers.released), hold.waiting) == (16, 34)
    # A caller that comes now is behind those that wait.
    tasks.append(callers.begin("late"))
    await settled()
    assert hold.waiting == 35
    callers.may_end.set()
    await asyncio.gather(*tasks)
    assert callers.most_at_once == 16
    assert callers.released[-1] == "late"


async def test_a_replica_that_is_lost_stops_the_release() -> None:
    hold = hold_of()
    callers = Callers(hold)
    tasks = [callers.begin(f"a-{number}") for number in range(20)]
    await settled()
    hold.open(8)
    await settled()
    hold.shut()
    callers.may_end.set()
    await settled()
    assert (len(callers.released), hold.waiting) == (8, 12)
    hold.open(8)
    await asyncio.gather(*tasks)
    assert len(callers.released) == 20


async def test_the_queue_has_the_bounds_of_the_engine() -> None:
    hold = hold_of(Bounds(requests=3, tenant_requests=2))
    callers = Callers(hold)
    tasks = [callers.begin("a-1"), callers.begin("a-2")]
    await settled()
    with pytest.raises(QueueFull, match="2 waiting requests; the limit is 2"):
        async with hold.turn(request("a-3")):
            pass
    tasks.append(callers.begin("b-1", "b"))
    await settled()
    with pytest.raises(Busy, match="as many waiting requests as it can serve"):
        async with hold.turn(request("c-1", "c")):
            pass
    assert hold.waiting == 3
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert hold.waiting == 0


async def test_each_request_without_a_replica_wakes_them() -> None:
    wakes = Wakes()
    hold = hold_of(wake=wakes)
    tasks = [Callers(hold).begin(f"a-{number}") for number in range(3)]
    await settled()
    assert wakes.count == 3
    hold.refuse(EngineUnavailable("no", retry_after=1))
    await asyncio.wait(tasks)


async def test_a_deadline_is_compared_with_what_is_left_of_a_start() -> None:
    now = [100.0]
    hold = Hold(Bounds(), expected_start_s=30, longest_s=60, wake=lambda: None, monotonic=lambda: now[0])

    async def refused(deadline: float) -> Busy | None:
        waiting = asyncio.ensure_future(enter(deadline))
        await settled()
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait((waiting,))
            return None
        error = waiting.exception()
        assert isinstance(error, Busy)
        return error

    async def enter(deadline: float) -> None:
        # The queue has its own clock, and the deadline is far away there.
        async with hold.turn(request("one", deadline=deadline)):
            pass

    far = 10.0**9
    now[0] = far
    error = await refused(far + 29)
    assert error is not None
    assert (error.retry_after, error.param) == (1, "x-request-timeout")
    now[0] += 25
    assert await refused(now[0] + 6) is None
    assert await refused(now[0] + 4) is not None
    # A start that is late may end at any moment.
    now[0] += 100
    assert await refused(now[0] + 2) is None


async def test_a_deadline_that_passes_is_that_of_the_queue() -> None:
    now = asyncio.get_running_loop().time()
    hold = Hold(Bounds(), expected_start_s=0.01, longest_s=60, wake=lambda: None)
    with pytest.raises(Busy, match="passed while the request waited for its turn"):
        async with hold.turn(request("one", deadline=now + 1.1)):
            pass
    assert hold.waiting == 0


async def test_no_request_waits_for_ever() -> None:
    hold = hold_of(longest_s=0.01)
    with pytest.raises(EngineUnavailable, match="No engine replica was ready within 0 s"):
        async with hold.turn(request("one")):
            pass
    assert hold.waiting == 0


async def test_refusals_are_one_error_for_each_request() -> None:
    hold = hold_of()
    tasks = [Callers(hold).begin(f"a-{number}") for number in range(3)]
    await settled()
    hold.refuse(EngineUnavailable("No replica can start.", retry_after=7))
    await asyncio.wait(tasks)
    errors = [task.exception() for task in tasks]
    assert len({id(error) for error in errors}) == 3
    assert all(isinstance(error, EngineUnavailable) and error.retry_after == 7 for error in errors)
    with pytest.raises(EngineUnavailable, match="No replica can start"):
        async with hold.turn(request("late")):
            pass
    hold.shut()
    waiting = Callers(hold).begin("again")
    await settled()
    assert hold.waiting == 1
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert hold.waiting == 0
