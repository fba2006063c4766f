"""Moves adapters through a running engine: into host memory beside its steps, into a slot between them."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from adapters.identity import VersionKey
from adapters.weights import WEIGHTS_FILE
from app.errors import AdapterLoadFailed, EngineUnavailable

logger = logging.getLogger(__name__)

#: How long one piece of a copy into a slot may hold up a step.
_COPY_S = 0.008
#: How often the workers are asked for stagings that have ended, while there are any; each costs a step less than 1 ms.
_ASK_EVERY_S = 0.005


class Workers(Protocol):
    """What moving needs of a running engine; see :class:`app.engine.instance.EngineInstance`."""

    async def call_workers(self, method: str, *args: Any) -> list[Any]: ...

    def name_adapter(self, key: VersionKey) -> None: ...

    def forget_adapter(self, key: VersionKey) -> None: ...


class Transfers:
    """The adapters of one engine, host memory and slots. The caller plans who goes where; nothing here evicts.

    What is asked of host memory reaches the workers in the order in which it was asked, so :meth:`stage` and
    :meth:`unstage` begin when they are called, not when they are awaited. A copy that is made anew would fall to the
    eviction before it otherwise.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._staging: dict[int, _Staging] = {}
        self._asking: asyncio.Task[None] | None = None

    def stage(self, key: VersionKey, path: Path, evict: Sequence[int] = ()) -> asyncio.Task[int]:
        """Bring a version into host memory, which is not on its way there; returns its bytes, of all workers together.

        Args:
            path: the folder that has its files.
            evict: versions that are dropped from there first.

        Raises:
            AdapterLoadFailed: and nothing of it is in host memory.
            EngineUnavailable
        """
        return asyncio.create_task(self._stage(key, path, evict))

    def unstage(self, version_ids: Sequence[int]) -> asyncio.Task[None]:
        """Drop versions from host memory; those that are not there are no error. Slots that they have stay.

        Raises:
            EngineUnavailable
        """
        return asyncio.create_task(self._unstage(version_ids))

    async def place(self, key: VersionKey, evict: tuple[VersionKey, ...]) -> None:
        """Copy a staged version into a slot, after giving up the slots of others.

        Raises:
            AdapterLoadFailed: and nothing of it is in a slot.
            EngineUnavailable
        """
        for other in evict:
            self._workers.forget_adapter(other)
        leaving = [other.version_id for other in evict]
        try:
            while not all(await self._workers.call_workers("tenora_place", key.version_id, leaving, _COPY_S)):
                leaving = []
        except EngineUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - vLLM raises a bare Exception for whatever failed in a worker
            # A half-copied slot would answer with what it held before.
            await self.take_out(key)
            raise _load_failed(key, error) from None
        self._workers.name_adapter(key)

    async def take_out(self, key: VersionKey) -> None:
        """Free a version's slot; one without a slot is no error."""
        self._workers.forget_adapter(key)
        await self._workers.call_workers("tenora_take_out", key.version_id)

    async def _stage(self, key: VersionKey, path: Path, evict: Sequence[int]) -> int:
        staging = self._staging[key.version_id] = _Staging()
        try:
            # The disk need not wait for the step that the call waits for, and nothing for a thread that is free.
            asyncio.get_running_loop().run_in_executor(None, _read_ahead, path / WEIGHTS_FILE)
            workers = await self._workers.call_workers(
                "tenora_stage", key.version_id, key.lora_name, str(path), list(evict)
            )
            staging.expect(len(workers))
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            size = await staging.done
        except BaseException as error:
            self._staging.pop(key.version_id, None)
            if not isinstance(error, EngineUnavailable):
                await self._unstage([key.version_id])
            if isinstance(error, _StagingFailed):
                raise _load_failed(key, error) from None
            raise
        return size

    async def _unstage(self, version_ids: Sequence[int]) -> None:
        await self._workers.call_workers("tenora_unstage", list(version_ids))

    async def _ask(self) -> None:
        """Hand out what the workers say of stagings, as long as there are any."""
        try:
            while self._staging:
                for outcomes in await self._workers.call_workers("tenora_finished"):
                    for version_id, size, error in outcomes:
                        if staging := self._staging.get(version_id):
                            staging.add(size, error)
                self._staging = {number: one for number, one in self._staging.items() if not one.done.done()}
                await asyncio.sleep(_ASK_EVERY_S)
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            for staging in self._staging.values():
                staging.fail(error)
            self._staging.clear()
        finally:
            self._asking = None


class _StagingFailed(Exception):
    """A worker could not stage a version."""


class _Staging:
    """One staging under way in all workers."""

    def __init__(self) -> None:
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        #: None until all workers have begun; a quick one may have ended by then.
        self._expected: int | None = None
        self._ended = self._bytes = 0

    def expect(self, workers: int) -> None:
        self._expected = workers
        self._settle()

    def add(self, size: int, error: str) -> None:
        self._ended += 1
        self._bytes += size
        if error:
            self.fail(_StagingFailed(error))
        self._settle()

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def _settle(self) -> None:
        if self._ended == self._expected and not self.done.done():
            self.done.set_result(self._bytes)


def _read_ahead(file: Path) -> None:
    """Have the system read a file as a whole: whoever maps it would read it page by page."""
    # A worker that does not find it says so better.
    with contextlib.suppress(OSError), file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _load_failed(key: VersionKey, error: Exception) -> AdapterLoadFailed:
    logger.error("version %s could not be loaded: %s", key.lora_name, error)
    return AdapterLoadFailed("the engine could not load this version", version_id=key.version_id)
