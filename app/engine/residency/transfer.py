"""Moves adapters through a running engine: into host memory beside its steps, into a slot between them."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from adapters.identity import VersionKey
from adapters.weights import WEIGHTS_FILE
from app.domain.errors import AdapterLoadFailed, EngineUnavailable

logger = logging.getLogger(__name__)

#: How long one piece of a copy into a slot may hold up a step.
_COPY_S = 0.008
#: How often the workers are asked for stagings that have ended, while there are any; each costs a step less than 1 ms.
_ASK_EVERY_S = 0.005


class Workers(Protocol):
    """What moving needs of a running engine; see :class:`app.engine.vllm.instance.EngineInstance`."""

    async def call_workers(self, method: str, *args: Any) -> list[Any]: ...

    def name_adapter(self, key: VersionKey) -> None: ...

    def forget_adapter(self, key: VersionKey) -> None: ...


class Transfers:
    """The adapters of one engine, host memory and slots. The caller plans who goes where; nothing here evicts.

    What is asked of host memory, and what is asked of the slots, reaches the workers in the order in which it was
    asked, so all these begin when they are called, not when they are awaited. A copy that is made anew would fall to
    the eviction before it otherwise. Changes of slots that wait for the same step go together.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._staging: dict[int, _Staging] = {}
        self._asking: asyncio.Task[None] | None = None
        self._changes: list[_Change] = []
        self._changing: asyncio.Task[None] | None = None

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

    def place(self, key: VersionKey, evict: Sequence[VersionKey]) -> asyncio.Task[None]:
        """Copy a staged version into a slot, after giving up the slots of others.

        Raises:
            AdapterLoadFailed: and nothing of it is in a slot.
            EngineUnavailable
        """
        for other in evict:
            self._workers.forget_adapter(other)
        change = self._change(key.version_id, [other.version_id for other in evict])
        return asyncio.create_task(self._placed(key, change))

    def take_out(self, key: VersionKey) -> "asyncio.Future[None]":
        """Free a version's slot; one without a slot is no error.

        Raises:
            EngineUnavailable
        """
        self._workers.forget_adapter(key)
        return self._change(None, [key.version_id])

    async def _placed(self, key: VersionKey, change: "asyncio.Future[None]") -> None:
        try:
            await change
        except _Failed as error:
            # Of several workers another may have it.
            await self.take_out(key)
            raise _load_failed(key, error) from None
        self._workers.name_adapter(key)

    def _change(self, version_id: int | None, leaving: list[int]) -> "asyncio.Future[None]":
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.append(_Change(version_id, leaving, done))
        if self._changing is None:
            self._changing = asyncio.create_task(self._change_slots())
        return done

    async def _change_slots(self) -> None:
        """Have the workers change slots, as long as there is something to change."""
        try:
            while self._changes:
                asked = [(change.version_id, change.leaving) for change in self._changes]
                # What one worker has done and another not is asked of both again.
                ended = list(
                    zip(*await self._workers.call_workers("tenora_change_slots", asked, _COPY_S), strict=False)
                )
                for change, outcomes in zip(self._changes, ended, strict=False):
                    _settle(change.done, next((_Failed(error) for error in outcomes if error), None))
                del self._changes[: len(ended)]
        except Exception as error:
            if not isinstance(error, EngineUnavailable):
                # No fault of the versions: what is wrong with one of them is an outcome.
                logger.exception("the workers could not change slots")
                error = EngineUnavailable("the engine could not change its slots", retry_after=5)
            for change in self._changes:
                _settle(change.done, error)
            self._changes.clear()
        finally:
            self._changing = None

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
            if isinstance(error, _Failed):
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


class _Failed(Exception):
    """A worker could not stage a version, or not copy it."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A version that is copied into a slot, if any, and those that lose theirs."""

    version_id: int | None
    leaving: list[int]
    done: "asyncio.Future[None]"


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
            self.fail(_Failed(error))
        self._settle()

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def _settle(self) -> None:
        if self._ended == self._expected and not self.done.done():
            self.done.set_result(self._bytes)


def _settle(done: "asyncio.Future[None]", error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
        return
    done.set_exception(error)
    done.exception()  # whoever waited may have gone away


def _read_ahead(file: Path) -> None:
    """Have the system read a file as a whole: whoever maps it would read it page by page."""
    # A worker that does not find it says so better.
    with contextlib.suppress(OSError), file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _load_failed(key: VersionKey, error: Exception) -> AdapterLoadFailed:
    logger.error("version %s could not be loaded: %s", key.lora_name, error)
    return AdapterLoadFailed("the engine could not load this version", version_id=key.version_id)
