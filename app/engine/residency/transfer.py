"""Adapter transfer through a running engine: into host memory during its steps, into a slot between them."""

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

#: Time budget of one piece of a copy into a slot, in seconds. Steps wait meanwhile.
_COPY_S = 0.008
#: Interval at which the workers are polled for ended stagings, in seconds.
_ASK_EVERY_S = 0.005


class Workers(Protocol):
    """Engine operations that transfers need; see :class:`app.engine.vllm.instance.EngineInstance`."""

    async def call_workers(self, method: str, *args: Any) -> list[Any]: ...

    def name_adapter(self, key: VersionKey) -> None: ...

    def forget_adapter(self, key: VersionKey) -> None: ...


class Transfers:
    """Adapter transfers of one engine, to host memory and to slots. The caller plans evictions.

    Calls for host memory reach the workers in the order in which they were made, and so do calls for slots. Therefore
    they begin when they are called, not when they are awaited. Otherwise an earlier eviction could drop a copy that was
    staged again. Slot changes that wait for the same step are sent together.
    See docs/decisions/0016-stage-during-steps-copy-between-them.md.

    Raises:
        EngineUnavailable: by every method, if the engine has died or cannot change its slots.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._staging: dict[int, _Staging] = {}
        self._asking: asyncio.Task[None] | None = None
        self._changes: list[_Change] = []
        self._changing: asyncio.Task[None] | None = None

    def stage(self, key: VersionKey, path: Path, evict: Sequence[int] = ()) -> asyncio.Task[int]:
        """Stage a version in host memory. It must not be on its way there already.

        Args:
            path: folder of its files.
            evict: versions to drop from host memory first.

        Returns:
            Task with the size of the copy in bytes, summed over all workers.

        Raises:
            AdapterLoadFailed: nothing of it is in host memory.
        """
        return asyncio.create_task(self._stage(key, path, evict))

    def unstage(self, version_ids: Sequence[int]) -> asyncio.Task[None]:
        """Drop versions from host memory. Versions that are not there are ignored. Their slots stay."""
        return asyncio.create_task(self._unstage(version_ids))

    def place(self, key: VersionKey, evict: Sequence[VersionKey]) -> asyncio.Task[None]:
        """Copy a staged version into a slot, after freeing the slots of others.

        Raises:
            AdapterLoadFailed: nothing of it is in a slot.
        """
        for other in evict:
            self._workers.forget_adapter(other)
        change = self._change(key.version_id, [other.version_id for other in evict])
        return asyncio.create_task(self._placed(key, change))

    def take_out(self, key: VersionKey) -> "asyncio.Future[None]":
        """Free a version's slot. A version without a slot is ignored."""
        self._workers.forget_adapter(key)
        return self._change(None, [key.version_id])

    async def _placed(self, key: VersionKey, change: "asyncio.Future[None]") -> None:
        try:
            await change
        except _Failed as error:
            # With several workers, another one may have copied it.
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
        """Send slot changes to the workers until none are pending."""
        try:
            while self._changes:
                changes = [(change.version_id, change.leaving) for change in self._changes]
                # A change that only some workers have completed is sent to all of them again.
                ended = list(
                    zip(*await self._workers.call_workers("tenora_change_slots", changes, _COPY_S), strict=False)
                )
                for change, outcomes in zip(self._changes, ended, strict=False):
                    _settle(change.done, next((_Failed(error) for error in outcomes if error), None))
                del self._changes[: len(ended)]
        except Exception as error:
            if not isinstance(error, EngineUnavailable):
                # An error of a single version is an outcome, so this one is not the fault of a version.
                logger.exception("The workers could not change slots.")
                error = EngineUnavailable("The engine could not change its slots. Try again later.", retry_after=5)
            for change in self._changes:
                _settle(change.done, error)
            self._changes.clear()
        finally:
            self._changing = None

    async def _stage(self, key: VersionKey, path: Path, evict: Sequence[int]) -> int:
        staging = self._staging[key.version_id] = _Staging()
        try:
            # Start to read from disk now, as the call below waits for a step. Do not wait for a free thread.
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
        """Poll the workers for outcomes while stagings are under way."""
        try:
            while self._staging:
                for outcomes in await self._workers.call_workers("tenora_finished"):
                    for version_id, size, error in outcomes:
                        if staging := self._staging.get(version_id):
                            staging.add(size, error)
                self._staging = {
                    version_id: staging for version_id, staging in self._staging.items() if not staging.done.done()
                }
                await asyncio.sleep(_ASK_EVERY_S)
        except Exception as error:  # noqa: BLE001 - passed on to the waiting calls
            for staging in self._staging.values():
                staging.fail(error)
            self._staging.clear()
        finally:
            self._asking = None


class _Failed(Exception):
    """Failure of a worker to stage or copy a version."""


@dataclass(frozen=True, slots=True)
class _Change:
    """Slot change: the version to copy into a slot, if any, and the versions whose slots are freed."""

    version_id: int | None
    leaving: list[int]
    done: "asyncio.Future[None]"


class _Staging:
    """Staging of one version, under way in all workers."""

    def __init__(self) -> None:
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        #: None until all workers have begun. A fast worker may have ended by then.
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
    done.exception()  # mark it as retrieved, as its waiter may be gone


def _read_ahead(file: Path) -> None:
    """Ask the kernel to read a whole file ahead. A process that maps it would read it page by page."""
    # A worker reports a missing file better.
    with contextlib.suppress(OSError), file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _load_failed(key: VersionKey, error: Exception) -> AdapterLoadFailed:
    logger.error("Version %s could not be loaded: %s", key.lora_name, error)
    return AdapterLoadFailed(
        "The engine could not load this version. Check the adapter, then upload it again.", version_id=key.version_id
    )
