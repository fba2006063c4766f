"""Slot assignment: versions with slots, versions that wait for one, and drains."""

from collections.abc import Callable, Iterator
from itertools import chain

from app.scheduling.fair_order import FairOrder
from app.scheduling.queues import BASE, COLD, DRAINING, RESIDENT, STAGED, Request, SlotState, Version
from app.scheduling.slot_holders import SlotHolders
from app.scheduling.slot_waits import SlotWaits
from app.scheduling.token_counters import TokenCounters


class Slots:
    """Versions with their waiting requests, and the slots.

    Holders drain if staged versions have waited longer than ``max_age_s`` and no slot is free, one for each of them.
    Drains start as late as the slack of these versions allows. The version with the most service drains first, versions
    that are still filling last, pinned versions never. A draining version admits no request. Its waiting requests start
    a new wait for a slot, behind the versions that it made room for.

    Args:
        slots: number of slots.
        max_age_s: seconds of waiting after which a version is aged.
        counters: virtual token counters of the tenants.
        numbers: event counter, shared with arrivals of requests.
    """

    def __init__(self, slots: int, max_age_s: float, counters: TokenCounters, numbers: Iterator[int]) -> None:
        self._numbers, self._now = numbers, 0.0
        #: Number of free slots.
        self.free = slots
        self._base = Version(BASE, RESIDENT)
        self._versions = {BASE: self._base}
        self.waits = SlotWaits(slots, max_age_s)
        self._order = FairOrder(counters)
        self._staged: set[int] = set()
        self._holders = SlotHolders(self.waits)
        #: Versions that wait to be staged, by id.
        self._cold: dict[int, Version] = {}
        #: Waiting requests that take no place in the window, oldest first: internal work such as pins and preloads.
        self.weightless: dict[str, Request] = {}

    def versions(self) -> list[Version]:
        """Return the versions with a waiting or running request or a slot."""
        return [version for version in self._versions.values() if version is not self._base]

    def version(self, version_id: int) -> Version:
        """Return the state of a version; created if none of its requests waits or runs."""
        version = self._versions.get(version_id)
        if version is None:
            version = self._versions[version_id] = Version(version_id, self.slot_state(version_id))
        return version

    def slot_state(self, version_id: int) -> SlotState:
        """Return the slot state of a version, known or not."""
        version = self._versions.get(version_id)
        if version is not None:
            return version.slot_state
        return STAGED if version_id in self._staged else COLD

    def cold(self) -> list[int]:
        """Return the versions that wait to be staged, longest wait first."""
        return sorted(self._cold, key=lambda version_id: self._cold[version_id].waiting.oldest.number)

    @property
    def runnable(self) -> tuple[SlotState, ...]:
        """Slot states whose requests need no further slot or find a free one."""
        return (RESIDENT, STAGED) if self.free else (RESIDENT,)

    def join(self, request: Request, now: float) -> None:
        """Enqueue a request."""
        version = request.version
        if not version.waiting and version.slot_state is not RESIDENT:
            version.ahead = self._waiting()
        version.waiting[request.name] = request
        if not request.parent.sequences:
            self.weightless[request.name] = request
        else:
            self._order.add(request)
        self._track(version, now)

    def admit(self, request: Request, now: float) -> None:
        """Dequeue a request that runs now; its version takes a free slot if it needs one."""
        version = request.version
        takes_slot = version.slot_state is STAGED
        if takes_slot:
            if self.free == 1:
                self.waits.record_grant(version)
            self.waits.remove(version)
            self.free -= 1
            version.holds_slot, version.service = True, 0.0
            self._order.move(version, RESIDENT)
        self.quit(request, now)
        if takes_slot:
            self._holders.add(version, filling=bool(version.waiting))
        version.running += 1
        request.running, request.started = True, now

    def quit(self, request: Request, now: float) -> None:
        """Dequeue a request."""
        if request.parent.sequences:
            self._order.remove(request)
        else:
            del self.weightless[request.name]
        version = request.version
        del version.waiting[request.name]
        version.filling = version.filling and bool(version.waiting)
        self._track(version, now)

    def next_weightless(self) -> Request | None:
        """Return the oldest waiting request without a place in the window that can run now.

        Its version needs no slot, or a slot is free.
        """
        runnable = self.runnable
        return next((request for request in self.weightless.values() if request.version.slot_state in runnable), None)

    def least_counter(self) -> float:
        """Return a lower bound on the counters of the tenants that :meth:`pick` considers in fair order."""
        return self._order.least(self.runnable)

    def pick_new(self) -> Request | None:
        """Return the request that :meth:`pick` would choose among new tenants with nothing in flight."""
        request = self._order.first(self.runnable, new=True)
        return None if request is None else self._hurry(request)

    def pick(self, keeps_back: Callable[[Request], bool]) -> Request | None:
        """Return the next request in fair order.

        Requests that need no further slot are candidates. If a slot is free, so are those that need one.

        The oldest request of the longest-waiting aged version takes precedence in two cases:

        - It belongs to the same tenant as the choice in fair order, which needs no slot.
        - No grant may overtake an aged version (:meth:`SlotWaits.passable`). Then it takes precedence if it belongs
          to the same tenant, or if the choice in fair order would take the last free slot.

        Args:
            keeps_back: predicate for requests that must let others pass; not applied to requests that need a slot.
        """
        first = self._order.first(self.runnable)
        if first is None:
            return None
        for request in map(self._hurry, chain([first], self._order.in_order(self.runnable))):
            if request.version.slot_state is STAGED or not keeps_back(request):
                return request
        return None

    def _hurry(self, request: Request) -> Request:
        if not self.free or (oldest := self.waits.oldest()) is None:
            return request
        hurried, needs_slot = oldest.waiting.oldest, request.version.slot_state is STAGED
        if hurried.tenant is request.tenant:
            return request if needs_slot and self.waits.passable() else hurried
        return hurried if needs_slot and self.free == 1 and not self.waits.passable() else request

    def leave(self, request: Request, now: float) -> None:
        """End a running or waiting request; the last running request of a version frees its slot."""
        version = request.version
        if not request.running:
            self.quit(request, now)
        else:
            version.running -= 1
            if not version.running and version.holds_slot:
                self.waits.record_tenure(now - request.started)
        self._end(version, now)

    def _end(self, version: Version, now: float) -> None:
        if version is self._base or version.running or version.pinned:
            return
        if version.holds_slot:
            self._release(version, now)
        if not version.waiting:
            del self._versions[version.version_id]

    def advance_clock(self, now: float) -> None:
        """Advance the clock: age waiting versions and drain holders for them."""
        self._now = now
        self.waits.advance_clock(now)
        self.balance(now)

    def balance(self, now: float) -> bool:
        """Match the number of draining holders to the aged versions without a free slot.

        Returns:
            True if a draining version can be joined again.
        """
        holders, reopened = self._holders, False
        need = self.waits.needs() - self.free - len(holders.draining)
        while holders.draining and need < 0:
            self._reopen(holders.reopen())
            reopened, need = True, self.waits.needs() - self.free - len(holders.draining)
        if need > 0 and self.waits.can_wait():
            return reopened
        while need > 0 and (version := holders.drain(now)) is not None:
            need -= 1
            self._close(version, now)
            self._order.move(version, DRAINING)
            self._track(version, now)
        return reopened

    def pin(self, version_id: int) -> None:
        """Pin a version: it keeps its slot and every request may join it.

        Raises:
            ValueError: the version has no slot.
        """
        version = self._versions.get(version_id)
        if version is None or not version.holds_slot:
            raise ValueError(f"Version {version_id} has no slot, so it cannot be pinned.")
        if version.drains_since is not None:
            self._reopen(self._holders.reopen(version))
        if not version.pinned:
            self._holders.remove(version)
        version.pinned = True

    def unpin(self, version_id: int) -> None:
        """Remove the pin of a version."""
        version = self._versions.get(version_id)
        if version is not None and version.pinned:
            version.pinned = False
            self._holders.add(version, filling=False)
            # The request that held the slot may have ended already.
            self._end(version, self._now)

    def stage(self, version_id: int, now: float) -> None:
        """Record that a version is staged and can be copied into a slot."""
        self._staged.add(version_id)
        version = self._versions.get(version_id)
        if version is not None and version.slot_state is COLD:
            # Versions that are still cold wait for staging, not for a slot, so they no longer count as ahead.
            version.ahead = min(version.ahead, self.waits.waiting)
            self._order.move(version, STAGED)
            self._track(version, now)

    def unstage(self, version_id: int) -> None:
        """Record that a version is no longer staged; it keeps a slot that it holds until its last request ends."""
        self._staged.discard(version_id)
        version = self._versions.get(version_id)
        if version is not None and version.slot_state is STAGED:
            self._order.move(version, COLD)
            self.waits.remove(version, done=False)
            self._cold[version_id] = version

    def _waiting(self) -> int:
        return self.waits.waiting + len(self._cold)

    def _release(self, version: Version, now: float) -> None:
        self.free += 1
        version.holds_slot = False
        self._holders.remove(version)
        if version.drains_since is None:
            self._close(version, now)
        version.drains_since = None
        self._order.move(version, STAGED if version.version_id in self._staged else COLD)
        self._track(version, now)

    def _close(self, version: Version, now: float) -> None:
        version.closed_at, version.closed, version.ahead = now, next(self._numbers), self._waiting()

    def _reopen(self, version: Version) -> None:
        self.waits.remove(version)
        self._order.move(version, RESIDENT)

    def _track(self, version: Version, now: float) -> None:
        """Update the wait of a version, for a slot or for staging, from its oldest request."""
        if version.slot_state is RESIDENT:
            return  # it waits for neither; removed when it became RESIDENT
        if version.slot_state is COLD and version.waiting:
            self._cold[version.version_id] = version
        else:
            self._cold.pop(version.version_id, None)
        if version.slot_state is not COLD and version.waiting:
            self.waits.put(version, now)
        else:
            self.waits.remove(version, done=not version.waiting)
