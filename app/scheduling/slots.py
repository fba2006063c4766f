"""Which versions may run: slots, those that wait for one, and who must give one up."""

from collections.abc import Callable, Iterator

from app.scheduling.fair_order import FairOrder
from app.scheduling.queues import BASE, COLD, DRAINING, OPEN, READY, Request, SlotState, Version
from app.scheduling.ranking import Ranking
from app.scheduling.slot_holders import SlotHolders
from app.scheduling.slot_waits import SlotWaits
from app.scheduling.token_counters import TokenCounters


class Slots:
    """Versions, and the requests that wait for them.

    While staged versions that have waited longer than ``max_age_s`` find no slot free, as many holders drain, as late
    as all those can bear: those with the most service first, pinned ones never, and last of all those that have not
    let in yet all that waited for them. Nobody joins a version that drains; what waits for it begins its wait for the
    next slot there, behind all those that it made room for.

    Args:
        numbers: of events, requests' entering among them.
    """

    def __init__(self, slots: int, max_age_s: float, counters: TokenCounters, numbers: Iterator[int]) -> None:
        self._numbers, self._now = numbers, 0.0
        #: Slots that no version holds.
        self.free = slots
        self._base = Version(BASE, OPEN, OPEN)
        self._versions = {BASE: self._base}
        self.ages = SlotWaits(slots, max_age_s)
        self._order = FairOrder(counters)
        self._staged: set[int] = set()
        self._holders = SlotHolders(self.ages)
        #: Versions that wait to be staged, by the number of their oldest request.
        self._cold: Ranking[int, int] = Ranking()
        #: Waiting requests that take no place in the window, the oldest first: pins and preloads, the server's own.
        self.weightless: dict[str, Request] = {}

    def versions(self) -> list[Version]:
        """Versions with a request that waits or runs, or a slot."""
        return [version for version in self._versions.values() if version is not self._base]

    def version(self, version_id: int) -> Version:
        """The version, new if nothing of it waits or runs."""
        version = self._versions.get(version_id)
        if version is None:
            place = self.place(version_id)
            version = self._versions[version_id] = Version(version_id, place, place)
        return version

    def place(self, version_id: int) -> SlotState:
        """Where a request for the version stands, or would stand."""
        version = self._versions.get(version_id)
        if version is not None:
            return version.place
        return READY if version_id in self._staged else COLD

    def cold(self) -> Iterator[int]:
        """Versions that wait to be staged, the longest waiting first."""
        return self._cold.ordered()

    def join(self, request: Request, now: float) -> None:
        """A request begins to wait."""
        version = request.version
        if not version.waiting.count and version.place is not OPEN:
            version.ahead = self._waiting()
        version.waiting.add(request)
        if not request.ticket.sequences:
            self.weightless[request.name] = request
        else:
            self._order.add(request)
        if version.waiting.count == 1:
            self._track(version, now)

    def admit(self, request: Request, now: float) -> None:
        """A request waits no longer, as it runs; its version takes a free slot if it needs one."""
        version = request.version
        takes_slot = version.place is READY
        if takes_slot:
            if self.free == 1:
                self.ages.note_turn(version)
            self.ages.remove(version)
            self.free -= 1
            version.holds_slot, version.service = True, 0.0
            self._order.move(version, OPEN)
        self.quit(request, now)
        if takes_slot:
            self._holders.add(version, filling=version.waiting.count > 0)
        version.running += 1
        request.running, request.started = True, now

    def quit(self, request: Request, now: float) -> None:
        """A request waits no longer."""
        if request.ticket.sequences:
            self._order.remove(request)
        else:
            del self.weightless[request.name]
        version = request.version
        if version.waiting.remove(request):
            self._track(version, now)
        if version.filling and not version.waiting.count:
            self._holders.filled(version)

    def next_weightless(self) -> Request | None:
        """The oldest waiting request that takes no place in the window, and needs no slot or has one free."""
        for request in self.weightless.values():
            place = request.version.place
            if place is OPEN or (place is READY and self.free):
                return request
        return None

    def least_counter(self) -> float:
        """No tenant whose request :meth:`pick` would choose in fair order has a smaller one."""
        return self._order.least(slot_free=self.free > 0)

    def pick_new(self) -> Request | None:
        """The request that :meth:`pick` would choose if all tenants were new, with nothing in flight."""
        request = self._order.first(slot_free=self.free > 0, new=True)
        return None if request is None else self._hurry(request)

    def pick(self, keeps_back: Callable[[Request], bool]) -> Request | None:
        """The next request in fair order, of those that need no slot or, if one is free, no more than that.

        In its stead the oldest of the version that has waited longest, and too long, for a slot: if that is the same
        tenant's and the other needs no slot; and where nobody may pass such versions any more also if it is the same
        tenant's at all, or if the other would take the last free slot.

        Args:
            keeps_back: whether a request has to let others pass; one whose version waits for a slot never has.
        """
        slot_free = self.free > 0
        request = self._order.first(slot_free=slot_free)
        if request is None:
            return None
        request = self._hurry(request)
        if request.version.place is READY or not keeps_back(request):
            return request
        for other in self._order.in_order(slot_free=slot_free):
            request = self._hurry(other)
            if request.version.place is READY or not keeps_back(request):
                return request
        return None

    def _hurry(self, request: Request) -> Request:
        if not self.free or (oldest := self.ages.oldest()) is None:
            return request
        hurried, needs_slot = oldest.waiting.first, request.version.place is READY
        if hurried.tenant is request.tenant:
            return request if needs_slot and self.ages.passable() else hurried
        return hurried if needs_slot and self.free == 1 and not self.ages.passable() else request

    def leave(self, request: Request, now: float) -> None:
        """A request ends, or gives up waiting: its version's slot is free if it was the last."""
        version = request.version
        if not request.running:
            self.quit(request, now)
        else:
            version.running -= 1
            if not version.running and version.holds_slot:
                self.ages.note_visit(now - request.started)
        self._end(version, now)

    def _end(self, version: Version, now: float) -> None:
        if version is self._base or version.running or version.pinned:
            return
        if version.holds_slot:
            self._release(version, now)
        if not version.waiting.count:
            del self._versions[version.version_id]
            self._order.forget(version.version_id)

    def pass_time(self, now: float) -> None:
        """Note who has become too old, and who must drain for it."""
        self._now = now
        self.ages.pass_time(now)
        self.balance(now)

    def balance(self, now: float) -> bool:
        """Let as many holders drain as old versions wait beyond the free slots.

        Returns: whether one that drained may be joined again.
        """
        holders, reopened = self._holders, False
        need = self.ages.needs() - self.free - len(holders.draining)
        while holders.draining and need < 0:
            self._reopen(holders.reopen())
            reopened, need = True, self.ages.needs() - self.free - len(holders.draining)
        if need > 0 and self.ages.can_wait():
            return reopened
        while holders.staying and need > 0 and (version := holders.drain(now)) is not None:
            need -= 1
            self._close(version, now)
            self._order.move(version, DRAINING)
            self._track(version, now)
        return reopened

    def pin(self, version_id: int) -> None:
        """Let a version keep its slot and everybody join it.

        Raises:
            ValueError: it has no slot.
        """
        version = self._versions.get(version_id)
        if version is None or not version.holds_slot:
            raise ValueError(f"version {version_id} has no slot to keep")
        if version.drains_since is not None:
            self._reopen(self._holders.reopen(version))
        if not version.pinned:
            self._holders.remove(version)
        version.pinned = True

    def unpin(self, version_id: int) -> None:
        """Make a version one like all others."""
        version = self._versions.get(version_id)
        if version is not None and version.pinned:
            version.pinned = False
            self._holders.add(version, filling=False)
            # Whatever kept the slot may be gone already.
            self._end(version, self._now)

    def stage(self, version_id: int, now: float) -> None:
        """The version can be copied into a slot."""
        self._staged.add(version_id)
        version = self._versions.get(version_id)
        if version is not None and version.place is COLD:
            # Those that came before it and have no copy yet wait for that, not for a slot.
            version.ahead = min(version.ahead, self.ages.waiting)
            self._order.move(version, READY)
            self._track(version, now)

    def unstage(self, version_id: int) -> None:
        """It can no longer; a slot that it holds is its own until its last request ends."""
        self._staged.discard(version_id)
        version = self._versions.get(version_id)
        if version is not None and version.place is READY:
            self._order.move(version, COLD)
            self.ages.remove(version, done=False)
            self._cold.set(version_id, version.waiting.first.number)

    def _waiting(self) -> int:
        return self.ages.waiting + len(self._cold)

    def _release(self, version: Version, now: float) -> None:
        self.free += 1
        version.holds_slot = False
        self._holders.remove(version)
        if version.drains_since is None:
            self._close(version, now)
        version.drains_since = None
        self._order.move(version, READY if version.version_id in self._staged else COLD)
        self._track(version, now)

    def _close(self, version: Version, now: float) -> None:
        version.closed_at, version.closed, version.ahead = now, next(self._numbers), self._waiting()

    def _reopen(self, version: Version) -> None:
        self.ages.remove(version)
        self._order.move(version, OPEN)

    def _track(self, version: Version, now: float) -> None:
        """Note since when a version waits, by its oldest request, if it waits for a slot or to be staged."""
        if version.place is OPEN:
            return  # it waits for neither, and was taken out when it came to be so
        version_id = version.version_id
        if version.place is COLD and version.waiting.count:
            self._cold.set(version_id, version.waiting.first.number)
        elif version_id in self._cold:
            self._cold.discard(version_id)
        if version.place is not COLD and version.waiting.count:
            self.ages.put(version, now)
        else:
            self.ages.remove(version, done=not version.waiting.count)
