"""Part receiver: slots, timeouts and discarded parts."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import Busy, InvalidRequest, TooLarge
from app.services.publishing.uploads.part_receiver import PartReceiver
from app.settings import LimitSettings
from app.support.spool import SpooledFile

DATA = b"a part"
LIMITS = LimitSettings(parts=4, upload_idle_seconds=0.2)


class Uploads:
    """Fake upload service with parts of 6 bytes that records what it receives."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    async def part_size(self, *_: Any) -> int:
        return len(DATA)

    async def put_part(self, *arguments: Any) -> None:
        part: SpooledFile = arguments[-1]
        self.kept.append(part.path.read_bytes())


@pytest.fixture
def uploads() -> Uploads:
    return Uploads()


@pytest.fixture
def receiver(uploads: Uploads, tmp_path: Path) -> Iterator[PartReceiver]:
    receiver = PartReceiver(uploads, tmp_path / "parts", LIMITS)  # type: ignore[arg-type]
    receiver.open()
    yield receiver
    receiver.close()


async def body(*chunks: bytes, until: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if until is not None:
        await until.wait()


async def receive(receiver: PartReceiver, stream: AsyncIterator[bytes], tenant: str = "pricing") -> None:
    sha256 = hashlib.sha256(DATA).hexdigest()
    await receiver.receive(tenant, "quotes", "a" * 32, "archive", 1, stream, sha256=sha256)


async def test_a_part_is_kept_once_it_is_whole_and_right(
    receiver: PartReceiver, uploads: Uploads, tmp_path: Path
) -> None:
    await receive(receiver, body(b"a ", b"part"))
    assert uploads.kept == [DATA]
    assert [path for path in (tmp_path / "parts").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("chunks", "error"),
    [([b"a par"], InvalidRequest), ([b"a part", b"!"], TooLarge), ([b"A part"], InvalidRequest), ([], InvalidRequest)],
)
async def test_other_bytes_are_not_kept(
    receiver: PartReceiver, uploads: Uploads, tmp_path: Path, chunks: list[bytes], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await receive(receiver, body(*chunks))
    assert uploads.kept == []
    assert [path for path in (tmp_path / "parts").rglob("*") if path.is_file()] == []


async def test_a_body_that_stands_still_is_ended(receiver: PartReceiver, uploads: Uploads) -> None:
    with pytest.raises(InvalidRequest, match=r"nothing arrived for 0\.2 s"):
        await receive(receiver, body(b"a ", until=asyncio.Event()))
    assert uploads.kept == []


async def test_one_tenant_cannot_take_all_places(uploads: Uploads, tmp_path: Path) -> None:
    limits = LimitSettings(parts=4, upload_idle_seconds=30)
    receiver, release = PartReceiver(uploads, tmp_path / "parts", limits), asyncio.Event()  # type: ignore[arg-type]
    receiver.open()
    slow = [asyncio.create_task(receive(receiver, body(DATA, until=release))) for _ in range(8)]
    # All of these wait for a slot or for bytes, and another tenant still gets a slot.
    await receive(receiver, body(DATA), tenant="supply")
    assert uploads.kept == [DATA]
    release.set()
    await asyncio.gather(*slow)
    assert len(uploads.kept) == 9
    receiver.close()


async def test_a_long_wait_for_a_place_gets_retry_after(uploads: Uploads, tmp_path: Path) -> None:
    limits = LimitSettings(parts=2, upload_idle_seconds=0.2)
    receiver, entered, release = PartReceiver(uploads, tmp_path / "p", limits), asyncio.Event(), asyncio.Event()  # type: ignore[arg-type]
    receiver.open()

    async def drip() -> AsyncIterator[bytes]:
        entered.set()
        while not release.is_set():
            yield b""
            await asyncio.sleep(0.01)
        yield DATA

    slow = asyncio.create_task(receive(receiver, drip()))
    await entered.wait()
    with pytest.raises(Busy) as caught:
        await receive(receiver, body(DATA))
    assert caught.value.retry_after
    release.set()
    await slow
    receiver.close()
