"""Slot states in the reference model, recomputed on each look-up, and the slack of waiting versions."""

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

from app.scheduling.queues import COLD, DRAINING, RESIDENT, STAGED, SlotState
from app.scheduling.slot_waits import DRAIN_KEPT, DRAINS_SEEN
from tests.support.scheduling.records import Request, Version
from tests.support.scheduling.shares import Shares


@dataclass(eq=False, kw_only=True)
class Slots(Shares):
    """Slots, versions and their waits."""

    slots: int
    max_age_s: float
    versions: defaultdict[int, Version] = field(default_factory=lambda: defaultdict(Version))
    slot_holders: set[int] = field(default_factory=set)
    pinned: set[int] = field(default_factory=set)
    staged_ids: set[int] = field(default_factory=set)
    numbers: int = 0
    #: Versions that wait for a slot: event number of the start, and time until which they have slack.
    begun: dict[int, tuple[int, float]] = field(default_factory=dict)
    gained_s: float = 0.0
    looked: float = 0.0
    visits: list[float] = field(default_factory=list)

    def waiting(self, version_id: int | None) -> list[Request]:
        """Return the version's waiting requests, oldest first."""
        return [r for r in self.requests.values() if not r.running and r.parent.version_id == version_id]

    def running(self, version_id: int) -> list[Request]:
        return [r for r in self.requests.values() if r.running and r.parent.version_id == version_id]

    def waiting_versions(self) -> dict[int, Request]:
        """Return the versions without a slot, with their oldest waiting requests."""
        oldest: dict[int, Request] = {}
        for request in self.requests.values():
            version_id = request.parent.version_id
            if not request.running and version_id is not None and version_id not in self.slot_holders:
                oldest.setdefault(version_id, request)
        return oldest

    def queue(self) -> list[int]:
        """Return the versions that wait for a slot or for staging, including draining ones."""
        return [*self.waiting_versions(), *(version_id for version_id in self.draining() if self.waiting(version_id))]

    def free(self) -> int:
        return self.slots - len(self.slot_holders)

    def draining(self) -> list[int]:
        return [version_id for version_id in self.slot_holders if self.versions[version_id].drains_since is not None]

    def slot_state(self, request: Request) -> SlotState:
        version_id = request.parent.version_id
        if version_id is None:
            return RESIDENT
        if version_id in self.slot_holders:
            return RESIDENT if self.versions[version_id].drains_since is None else DRAINING
        return STAGED if version_id in self.staged_ids else COLD

    def can_go(self, request: Request) -> bool:
        return not request.running and (
            self.slot_state(request) == RESIDENT or (self.slot_state(request) == STAGED and self.free() > 0)
        )

    def since(self, version_id: int) -> float:
        return max(self.waiting(version_id)[0].arrived, self.versions[version_id].closed_at)

    def turn_number(self, version_id: int) -> int:
        return max(self.waiting(version_id)[0].number, self.versions[version_id].closed)

    def old(self) -> list[int]:
        """Return the aged versions without a slot, longest wait first."""
        return sorted((v for v in self.waiting_versions() if self.versions[v].limit is not None), key=self.turn_number)

    def leaving(self) -> list[int]:
        """Return the aged versions that still drain."""
        return [version_id for version_id in self.draining() if self.versions[version_id].limit is not None]

    def longest_s(self) -> float:
        """Return the longest slot tenure in seconds, decayed with every later one."""
        longest = 0.0
        for seconds in self.visits:
            longest = max(seconds, DRAIN_KEPT * longest)
        return longest

    def drain_s(self) -> float:
        return self.longest_s() or inf if len(self.visits) >= DRAINS_SEEN else inf

    def note_waits(self) -> None:
        """Update the versions that wait for a slot, and the slack gained when a wait ends.

        Call it after every change that may affect this.
        """
        waiting = {version_id for version_id in self.queue() if version_id in self.staged_ids | self.slot_holders}
        for version_id in self.begun.keys() - waiting:
            number, _ = self.begun[version_id]
            # A version that must be staged again keeps its position.
            done = version_id in self.slot_holders or not self.waiting(version_id)
            if done and len(self.visits) >= DRAINS_SEEN and number == min(self.begun.values())[0]:
                self.gained_s += self.longest_s() / self.slots
            del self.begun[version_id]
        for version_id in waiting:
            number, ahead = self.turn_number(version_id), self.versions[version_id].ahead
            if version_id not in self.begun or number != self.begun[version_id][0]:
                bears_s = (ahead // self.slots + 1) * self.max_age_s - (1 - 1 / self.slots) * self.longest_s()
                self.begun[version_id] = (number, self.since(version_id) + bears_s - self.gained_s)

    def can_bear(self, seconds: float = 0.0) -> bool:
        """Return whether every aged version has this much slack, so that no holder needs to drain."""
        untils = [self.begun[version_id][1] for version_id in self.old() + self.leaving()]
        return not untils or self.looked + seconds <= min(untils) + self.gained_s
