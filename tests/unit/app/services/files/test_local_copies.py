"""Local copies: one fetch for all users, a bound in bytes, a share for each tenant, removal."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.domain.errors import Busy
from app.domain.files import Purpose, StoredFile
from app.services.files.local_copies import IDLE_S, LocalCopies

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def file(number: int, size: int = 10, *, tenant: int = 1) -> StoredFile:
    name = f"file-{number:032x}"
    return StoredFile(name, tenant, Purpose.BATCH, "in.jsonl", size, "0" * 64, "1" * 64, NOON, "key", NOON)


@dataclass
class Source:
    """Fetches that tests count, block and let fail."""

    fetched: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False

    async def fetch(self, one: StoredFile, path: Path) -> None:
        self.fetched.append(one.id)
        await asyncio.to_thread(path.write_bytes, b"x" * one.bytes)
        await self.gate.wait()
        if self.fails:
            raise ConnectionError


@pytest.fixture
def source() -> Source:
    made = Source()
    made.gate.set()
    return made


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def copies(source: Source, clock: Clock, tmp_path: Path) -> LocalCopies:
    made = LocalCopies(tmp_path / "copies", most_bytes=40, fetch=source.fetch, clock=clock)
    made.open()
    return made


def on_disk(tmp_path: Path) -> int:
    return len(list((tmp_path / "copies").iterdir()))


async def use(copies: LocalCopies, one: StoredFile) -> None:
    async with copies.use(one) as path:
        assert path.stat().st_size == one.bytes


async def test_concurrent_users_share_one_fetch(copies: LocalCopies, source: Source) -> None:
    source.gate.clear()
    users = [asyncio.create_task(use(copies, file(1))) for _ in range(5)]
    await asyncio.sleep(0)
    source.gate.set()
    await asyncio.gather(*users)
    await use(copies, file(1))
    assert source.fetched == [file(1).id]


async def test_a_cancelled_user_leaves_the_fetch_to_the_others(copies: LocalCopies, source: Source) -> None:
    source.gate.clear()
    first, second = (asyncio.create_task(use(copies, file(1))) for _ in range(2))
    while not source.fetched:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    source.gate.set()
    await second
    assert source.fetched == [file(1).id]


async def test_a_failed_fetch_leaves_nothing_and_can_be_repeated(
    copies: LocalCopies, source: Source, tmp_path: Path
) -> None:
    source.fails = True
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await use(copies, file(1))
        assert (copies.bytes, on_disk(tmp_path)) == (0, 0)
    source.fails = False
    await use(copies, file(1))


async def test_idle_copies_go_first_used_first_gone(copies: LocalCopies, source: Source, clock: Clock) -> None:
    for number in (1, 2, 3, 4, 1, 5):
        clock.now += 1
        await use(copies, file(number))
    assert copies.bytes == 40
    source.fetched.clear()
    await use(copies, file(1))
    await use(copies, file(2))
    assert source.fetched == [file(2).id]


async def test_copies_in_use_bound_the_bytes_and_one_tenant_gets_half(copies: LocalCopies) -> None:
    async with AsyncExitStack() as held:
        for number in (1, 2):
            await held.enter_async_context(copies.use(file(number)))
        with pytest.raises(Busy):
            await use(copies, file(3))
        await held.enter_async_context(copies.use(file(1)))
        for number in (4, 5):
            await held.enter_async_context(copies.use(file(number, tenant=2)))
        with pytest.raises(Busy):
            await use(copies, file(6, tenant=3))
    await use(copies, file(6, tenant=3))


async def test_a_copy_is_removed_after_its_last_user(copies: LocalCopies, clock: Clock, tmp_path: Path) -> None:
    async with copies.use(file(1)):
        clock.now += 2 * IDLE_S
        await copies.remove_idle()
        assert on_disk(tmp_path) == 1
    clock.now += IDLE_S - 1
    await copies.remove_idle()
    assert on_disk(tmp_path) == 1
    clock.now += 1
    await copies.remove_idle()
    assert (copies.bytes, on_disk(tmp_path)) == (0, 0)


async def test_a_drop_waits_for_users_and_fetches(copies: LocalCopies, source: Source, tmp_path: Path) -> None:
    source.gate.clear()
    user = asyncio.create_task(use(copies, file(1)))
    while not source.fetched:
        await asyncio.sleep(0)
    assert not await copies.drop(file(1).id)
    source.gate.set()
    await user
    async with copies.use(file(1)):
        assert not await copies.drop(file(1).id)
    assert await copies.drop(file(1).id)
    assert on_disk(tmp_path) == 0
    assert await copies.drop(file(1).id)


async def test_a_start_removes_what_an_earlier_process_left(copies: LocalCopies, tmp_path: Path) -> None:
    await use(copies, file(1))
    assert on_disk(tmp_path) == 1
    copies.open()
    assert on_disk(tmp_path) == 0
