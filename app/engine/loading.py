"""How an adapter gets into the engine: blob store -> node disk -> slot admission -> engine, a lease around it all."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from adapters.cache import DiskCache, Lease
from adapters.identity import VersionKey
from adapters.residency import Admission, Residency
from app.engine.admission import SlotQueue
from app.engine.base import EngineEvent, Listener
from app.errors import AdapterLoadFailed, EngineUnavailable

logger = logging.getLogger(__name__)


class AdapterHost(Protocol):
    """What loading needs of a running engine; see :class:`app.engine.instance.EngineInstance`."""

    async def add_adapter(self, key: VersionKey, path: Path) -> None: ...

    async def remove_adapter(self, version_id: int) -> None: ...


class LoadedLease:
    """The right of one request to use a loaded version."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give the right back; a second call does nothing."""
        release, self._release = self._release, None
        if release:
            release()


class AdapterLoader:
    """The adapters of one life of an engine.

    vLLM is never left to evict or to read a file by itself: what it holds is planned here, and what it holds
    keeps its files leased on this node's disk.

    Args:
        slots: distinct adapters that may run at once.
        places: adapters that the engine's host memory keeps, at least ``slots``.
        notify: told of every load and removal.
    """

    def __init__(self, host: AdapterHost, cache: DiskCache, *, slots: int, places: int, notify: Listener) -> None:
        self._host, self._cache, self._notify = host, cache, notify
        self._queue = SlotQueue(slots)
        self._residency = Residency(places)
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._removals: set[asyncio.Task[None]] = set()
        self._files: dict[int, Lease] = {}
        #: One change of the engine at a time: an evicted version may be wanted again before it is out.
        self.changes = asyncio.Lock()
        self._closed = False
        self._numbers = itertools.count(1)

    @property
    def resident(self) -> int:
        """Adapters in the engine, those being loaded included."""
        return len(self._residency.residents)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return self._queue.waiting

    async def lease(self, request_id: str, key: VersionKey) -> LoadedLease:
        """Return once the version is loaded and the request may run.

        The bytes are fetched before the request queues for a slot, so that a slow store holds no slot.

        Raises:
            AdapterLoadFailed, EngineUnavailable
            adapters.errors.StorageError: the version's bytes could not be had.
        """
        files = None if key.version_id in self._residency.residents else await self._cache.lease(key)
        try:
            await self._queue.enter(request_id, key.version_id)
            await self._ensure_loaded(key)
        except BaseException:
            self._queue.leave(request_id)
            raise
        finally:
            if files:
                files.release()
        return LoadedLease(lambda: self._release(request_id, key.version_id))

    async def load(self, key: VersionKey) -> None:
        """Load a version; it stays until its place is needed.

        Raises: as :meth:`lease`.
        """
        (await self.lease(f"load {next(self._numbers)}", key)).release()

    def keep_slot(self, version_id: int) -> None:
        """Let every request of a leased version in at once, until :meth:`share_slot`."""
        self._queue.pin(version_id)

    def share_slot(self, version_id: int) -> None:
        self._queue.unpin(version_id)

    def holds(self, version_id: int) -> bool:
        """Whether the version has a place or files here, were it only to be taken out."""
        return version_id in self._residency.residents or version_id in self._files

    async def unload(self, version_id: int) -> None:
        """Drop a version, now or when its last request has ended."""
        if self._residency.remove(version_id):
            await self._remove(version_id)

    async def close(self) -> None:
        """The engine is gone: refuse who waits, give back every file."""
        self._closed = True
        self._queue.close()
        for task in [*self._loads.values(), *self._removals]:
            task.cancel()
        await asyncio.gather(*self._loads.values(), *self._removals, return_exceptions=True)
        for files in self._files.values():
            files.release()
        self._files.clear()

    async def _ensure_loaded(self, key: VersionKey) -> None:
        """Take a lease on a place in the engine, loading the version first if need be; one load at a time."""
        version_id = key.version_id
        decision = self._residency.admit(version_id)
        if decision.admission is Admission.WAIT:
            # Slots bound the distinct leased versions, and there are at least as many places as slots.
            raise EngineUnavailable("every adapter place of the engine is taken", retry_after=1)
        if decision.admission is Admission.LOAD:
            load = self._loads[version_id] = asyncio.create_task(self._load(key, decision.evict))
            # Its error is for whoever waits; if all have gone away, it is nobody's.
            load.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            if pending := self._loads.get(version_id):
                # Whoever started the load may go away; the others still wait for it.
                await asyncio.shield(pending)
        except BaseException:
            self._give_back_place(version_id)
            raise

    async def _load(self, key: VersionKey, evicted: int | None) -> None:
        version_id, started = key.version_id, time.monotonic()
        try:
            async with self.changes:
                if evicted is not None:
                    await self._take_out(evicted)
                    self._notify(EngineEvent("evict", evicted))
                self._files[version_id] = await self._cache.lease(key)
                try:
                    await self._host.add_adapter(key, self._files[version_id].path)
                except BaseException:
                    self._files.pop(version_id).release()
                    raise
        except BaseException as error:
            self._residency.failed(version_id)
            if isinstance(error, AdapterLoadFailed):
                self._notify(EngineEvent("load_failed", version_id, time.monotonic() - started))
            raise
        finally:
            del self._loads[version_id]
        self._notify(EngineEvent("load", version_id, time.monotonic() - started))
        if self._residency.loaded(version_id):
            await self._remove(version_id)

    def _release(self, request_id: str, version_id: int) -> None:
        self._give_back_place(version_id)
        self._queue.leave(request_id)

    def _give_back_place(self, version_id: int) -> None:
        if self._residency.release(version_id) and not self._closed:
            removal = asyncio.create_task(self._remove(version_id))
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def _remove(self, version_id: int) -> None:
        async with self.changes:
            await self._take_out(version_id)
        self._notify(EngineEvent("unload", version_id))

    async def _take_out(self, version_id: int) -> None:
        try:
            await self._host.remove_adapter(version_id)
        finally:
            self._files.pop(version_id).release()
