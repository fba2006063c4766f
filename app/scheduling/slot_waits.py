"""Ageing of versions that wait for a slot, with a bound on each wait."""

from math import floor, inf

from sortedcontainers import SortedList

from app.scheduling.queues import STAGED, Version

#: Decay per slot tenure of the longest observed drain, and number of tenures before the estimate is used. Both are
#: cautious, because a slot grant that overtakes an aged version cannot be revoked.
DRAIN_KEPT = 0.99
DRAINS_SEEN = 8


class SlotWaits:
    """Waits of versions: staged versions without a slot, and draining versions with waiting requests.

    Slots are granted in fair order over tenants, so a tenant with many adapters gets no more grants than others. The
    wait of each version is bounded all the same:

        rounds x (max_age_s + one drain), rounds = ceil(versions up to and including it / slots).

    A version is aged after ``max_age_s``. Its grant and the grants of the versions before it take ``rounds`` drains.
    The other (rounds - 1) x ``max_age_s`` are its overtaking budget: rounds of grants to other versions, as many as
    whole drains fit into that time.

    Holders drain as late as the bound allows, because an engine runs half empty while slots drain. A version has slack
    until ``rounds`` x ``max_age_s`` have passed: until then the drains before it still fit into its bound. Each grant
    to the longest-waiting version removes one drain. All other versions then gain slack of one drain divided by the
    number of slots. The rest of a round in progress is deducted in advance.

    The state of a wait is stored in its version. Sorted lists order versions by event number of the start of the wait,
    which is the order in which they age.
    """

    def __init__(self, slots: int, max_age_s: float) -> None:
        self._slots, self._max_age_s = slots, max_age_s
        #: All waits, those of versions that are not aged yet, and those of aged versions without a slot.
        self._waits: SortedList[tuple[int, Version]] = SortedList()
        self._young: SortedList[tuple[int, Version]] = SortedList()
        self._old: SortedList[tuple[int, Version]] = SortedList()
        #: Overtaking budgets of all aged versions, draining ones included, as values of ``_passed``.
        self._limits: SortedList[float] = SortedList()
        #: Values of ``version.until`` of all aged versions: the latest start of a drain for each, less the slack that
        #: had been gained when its wait began.
        self._untils: SortedList[float] = SortedList()
        #: Cumulative slack in seconds gained by every waiting version.
        self._gained_s = 0.0
        self._now = 0.0
        #: Cumulative rounds of grants that overtook an aged version.
        self._passed = 0.0
        #: Longest drain in seconds, estimated from recent slot tenures, and the number of tenures that ended.
        self._longest_s = 0.0
        self._visits = 0

    @property
    def waiting(self) -> int:
        """Number of waiting versions."""
        return len(self._waits)

    def needs(self) -> int:
        """Return the number of slots that aged versions need.

        A draining version needs another slot, but counts only while its own slot is needed.
        """
        return len(self._waits) - len(self._young) if self._old else 0

    def oldest(self) -> Version | None:
        """Return the aged version without a slot that has waited longest; None if there is none."""
        return next((version for _, version in self._old), None)

    def passable(self) -> bool:
        """Return whether one more grant may overtake every aged version."""
        if self._limits and self._passed + self._turn() > self._limits[0]:
            return False
        return self.can_bear(self._drain_s())

    def can_bear(self, seconds: float = 0.0) -> bool:
        """Return whether every aged version has this much slack.

        No holder needs to drain for an aged version while it has slack.
        """
        return not self._untils or bool(self._now + seconds <= self._untils[0] + self._gained_s)

    def can_wait(self) -> bool:
        """Return whether holders that are not filling need not drain yet.

        The last ``max_age_s`` of slack are reserved for holders that are still filling.
        """
        return self.can_bear(self._max_age_s)

    def _turn(self) -> float:
        """Return the part of a round that one grant is: as many holders drain at a time as aged versions wait."""
        return 1 / max(1, min(len(self._old), self._slots))

    def put(self, version: Version, now: float) -> None:
        """Add a waiting version, or update one that stopped draining or has a new oldest request."""
        oldest = version.waiting.oldest
        number, since = max((oldest.number, oldest.arrived), (version.closed, version.closed_at))
        if number != version.began:
            self._end(version)
            version.began, version.since = number, since
            version.until = since + self._bears_s(version.ahead) - self._gained_s
            self._waits.add((number, version))
            if now > since + self._max_age_s:
                self._age(version)
            else:
                self._young.add((number, version))
        elif version.aged and version.slot_state is STAGED and (number, version) not in self._old:
            self._old.add((number, version))

    def _bears_s(self, ahead: int) -> float:
        """Return the initial slack in seconds of a version with this many versions ahead."""
        return (ahead // self._slots + 1) * self._max_age_s - (1 - 1 / self._slots) * self._longest_s

    def remove(self, version: Version, *, done: bool = True) -> None:
        """Remove a version if it waits.

        Args:
            done: False if the version will return to its position, as after staging it again.
        """
        if done and self._visits >= DRAINS_SEEN and self._waits and self._waits[0][1] is version:
            self._gained_s += self._longest_s / self._slots
        self._end(version)

    def _end(self, version: Version) -> None:
        if version.began < 0:
            return
        wait = version.began, version
        self._waits.remove(wait)
        self._young.discard(wait)
        self._old.discard(wait)
        if version.aged:
            self._limits.remove(version.limit)
            self._untils.remove(version.until)
        version.began, version.aged = -1, False

    def advance_clock(self, now: float) -> None:
        """Advance the clock and age versions that have waited longer than ``max_age_s``."""
        self._now = now
        while self._young and now > self._young[0][1].since + self._max_age_s:
            _, version = self._young.pop(0)
            self._age(version)

    def _age(self, version: Version) -> None:
        version.aged = True
        if version.slot_state is STAGED:
            self._old.add((version.began, version))
        rounds_before = version.ahead // self._slots
        passes = floor(rounds_before * self._max_age_s / self._drain_s())
        version.limit = self._passed + passes
        self._limits.add(version.limit)
        self._untils.add(version.until)

    def _drain_s(self) -> float:
        """Return the estimated length of a drain in seconds; infinite while unknown."""
        return self._longest_s if self._longest_s and self._visits >= DRAINS_SEEN else inf

    def record_grant(self, version: Version) -> None:
        """Record the grant of the last free slot to a version."""
        oldest = self.oldest()
        if oldest is not None and oldest is not version:
            self._passed += self._turn()

    def record_tenure(self, ran_s: float) -> None:
        """Record the end of a slot tenure.

        Args:
            ran_s: seconds that its last request ran, an upper bound on the length of a drain.
        """
        self._visits += 1
        self._longest_s = max(ran_s, DRAIN_KEPT * self._longest_s)
