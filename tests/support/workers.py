"""Fake workers that track their adapters."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adapters.cache import DiskCache
from adapters.identity import VersionKey
from app.domain.errors import EngineUnavailable
from app.engine.port import EngineEvent
from app.engine.residency.adapter_loader import AdapterLoader
from app.engine.residency.admission_queue import AdmissionQueue
from app.engine.residency.transfer import Transfers
from app.scheduling.admission_request import AdmissionRequest, Bounds

SLOTS, PLACES = 2, 3


#: Size in bytes of one version's weights, and of the staged copy that the workers report.
SIZE = 16


Versions = Callable[..., VersionKey]


class Workers:
    """Fake worker. It asserts against faults that kill a real one.

    These are a missing file during staging, more adapters than slots, and a copy of a version that is not staged.

    Attributes:
        staged: versions in host memory.
        held: versions in slots.
        named: versions that requests may name.
        stagings: versions in order of their staging requests.
        unreadable, uncopyable: versions that fail at staging, or at the copy into a slot.
        may_stage: event; no staging ends while it is clear.
        copying: partially copied versions, with the number of copied pieces.
        digests: digest of the bytes last staged under each id.
        pieces: number of calls that a copy into a slot takes.
        dead: True if every call fails.
    """

    def __init__(self) -> None:
        self.staged: set[int] = set()
        self.held: set[int] = set()
        self.named: set[int] = set()
        self.stagings: list[int] = []
        self.places: list[int] = []
        self.digests: dict[int, str] = {}
        self.unreadable: set[int] = set()
        self.uncopyable: set[int] = set()
        self.may_stage = asyncio.Event()
        self.may_stage.set()
        self.pieces, self.dead = 2, False
        self._under_way: dict[int, Path] = {}
        self.copying: dict[int, int] = {}

    async def call_workers(self, method: str, *args: Any) -> list[Any]:
        await asyncio.sleep(0)
        if self.dead:
            raise EngineUnavailable("dead")
        return [getattr(self, method.removeprefix("tenora_"))(*args)]

    def name_adapter(self, key: VersionKey) -> None:
        assert key.version_id in self.held
        self.named.add(key.version_id)

    def forget_adapter(self, key: VersionKey) -> None:
        self.named.discard(key.version_id)

    def stage(self, version_id: int, name: str, path: str, evict: list[int]) -> None:
        self.unstage(evict)
        assert name.startswith(f"{version_id}@")
        assert version_id not in self._under_way
        self.stagings.append(version_id)
        self._under_way[version_id] = Path(path)
        self.digests[version_id] = Path(path).name

    def finished(self) -> list[tuple[int, int, str]]:
        if not self.may_stage.is_set():
            return []
        ended = []
        for version_id, path in self._under_way.items():
            assert (path / "adapter_model.safetensors").read_bytes()
            if version_id in self.unreadable:
                ended.append((version_id, 0, "unreadable"))
            else:
                self.staged.add(version_id)
                ended.append((version_id, SIZE, ""))
        self._under_way.clear()
        return ended

    def unstage(self, version_ids: list[int]) -> None:
        for version_id in version_ids:
            self._under_way.pop(version_id, None)
            self.staged.discard(version_id)

    def change_slots(self, changes: list[tuple[int | None, list[int]]], budget_s: float) -> list[str]:
        outcomes: list[str] = []
        for version_id, leaving in changes:
            for other in leaving:
                self.take_out(other)
            if version_id in self.uncopyable:
                outcomes.append("uncopyable")
            elif version_id is None or self.place(version_id):
                outcomes.append("")
            else:
                break
        return outcomes

    def place(self, version_id: int) -> bool:
        assert version_id in self.staged or version_id in self.copying
        self.copying[version_id] = self.copying.get(version_id, 0) + 1
        if self.copying[version_id] < self.pieces:
            return False
        del self.copying[version_id]
        self.places.append(version_id)
        self.held.add(version_id)
        assert len(self.held) <= SLOTS
        return True

    def take_out(self, version_id: int) -> None:
        assert version_id not in self.named, "a request could still name it"
        self.copying.pop(version_id, None)
        self.held.discard(version_id)


class Desk:
    """Adapter loader with its queue; tests lease by request id."""

    def __init__(self, workers: Workers, cache: DiskCache, events: list[EngineEvent]) -> None:
        self.queue = AdmissionQueue(slots=SLOTS, window=100, max_age_s=2.0, bounds=Bounds())
        self.loader = AdapterLoader(
            Transfers(workers), cache, self.queue, slots=SLOTS, host_bytes=PLACES * SIZE, notify=events.append
        )

    async def lease(
        self, request_id: str, key: VersionKey, tenant: str = "one", deadline_s: float | None = None
    ) -> Any:
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        return await self.loader.lease(
            AdmissionRequest(request_id, tenant, 1.0, key.version_id, (1,), 1, deadline=deadline), key
        )
