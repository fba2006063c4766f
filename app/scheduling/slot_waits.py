"""Versions that wait for a slot: since when, who has waited too long, and who may still pass them."""

from math import floor, inf

from app.scheduling.queues import LEAVING, NONE, OLD, READY, YOUNG, Version
from app.scheduling.ranking import Multiset, Numbered

#: How much of the longest visit's end is remembered at the next one, and after how many it says anything: turns that
#: were passed on because drains seemed short cannot be taken back.
DRAIN_KEPT = 0.99
DRAINS_SEEN = 8


class SlotWaits:
    """How long versions have waited: staged ones without a slot, and those that drain with requests left waiting.

    Slots go round in fair order over tenants, so that a tenant with many adapters takes no more turns than others.
    Yet no version may wait longer than

        rounds x (max_age_s + one drain), rounds = ceil(versions up to and including it / slots).

    It is too old after ``max_age_s``, and its own turn and those of the versions before it take ``rounds`` drains.
    So in the (rounds - 1) x ``max_age_s`` that are left, turns of others may pass it: as many rounds of them as
    whole drains fit in.

    Nor are holders asked for their slots before they have to be, as an engine runs half empty while they drain. Until
    ``rounds`` x ``max_age_s`` have passed, all drains that were before a version fit into what it was promised. With
    every turn of the one that has waited longest there is one less of them, so that all others gain the part of a
    drain that a slot is of all slots. What is left of a round that is under way is taken off beforehand.

    What is known of one version is kept in it: among thousands a look at another place for each would be most of what
    a decision takes.

    Attributes:
        waiting: how many versions wait.
    """

    def __init__(self, slots: int, max_age_s: float) -> None:
        self._slots, self._max_age_s = slots, max_age_s
        self.waiting = 0
        #: Both by the number of the event with which their wait began, which is the order in which they become old.
        self._young: Numbered[Version] = Numbered()
        self._old: Numbered[Version] = Numbered()
        #: Those that drain, of all that are old.
        self._leaving: Numbered[Version] = Numbered()
        #: The values of ``_passed`` that old versions bear, those that drain too.
        self._limits = Multiset()
        #: The values of ``version.until`` of the same: the moment up to which each can bear that no holder drains for
        #: it, less what had been gained when its wait began.
        self._untils = Multiset()
        #: Seconds that all who waited have gained so far.
        self._gained_s = 0.0
        self._now = 0.0
        #: Rounds of turns so far in which an old version was passed.
        self._passed = 0.0
        #: The longest that a drain can take, from what ended visits lately, and how many ended.
        self._longest_s = 0.0
        self._visits = 0

    def needs(self) -> int:
        """Slots that old versions need: one that drains will need another, but only if its own is needed."""
        return len(self._old) + len(self._leaving) if self._old else 0

    def oldest(self) -> Version | None:
        """Of those without a slot, the one that has waited longest, if too long."""
        first = self._old.first()
        return None if first is None else self._old[first]

    def passable(self) -> bool:
        """Whether one more turn may pass every old version."""
        limit = self._limits.first()
        return (limit is None or self._passed + self._turn() <= limit) and self.can_bear(self._drain_s())

    def can_bear(self, seconds: float = 0.0) -> bool:
        """Whether all old versions can bear that no holder drains for them for so long."""
        until = self._untils.first()
        return until is None or self._now + seconds <= until + self._gained_s

    def can_wait(self) -> bool:
        """Whether holders that have let in all that waited for them need not drain yet.

        The last ``max_age_s`` that old versions can bear are for those that have not.
        """
        return self.can_bear(self._max_age_s)

    def _turn(self) -> float:
        """The part of a round that one turn is: as many holders drain at a time as old versions wait."""
        return 1 / max(1, min(len(self._old), self._slots))

    def put(self, version: Version, now: float) -> None:
        """A version waits, has ceased to drain, or its oldest request is another one now."""
        oldest = version.waiting.first
        number, since = oldest.number, oldest.arrived
        if version.closed > number:
            number, since = version.closed, version.closed_at
        if version.wait is not NONE:
            if number == version.began:
                if version.wait is LEAVING and version.place is READY:
                    self._leaving.discard(number)
                    self._stand(version)
                return
            self._take(version)
        version.began, version.since = number, since
        version.until = since + self._bears_s(version.ahead) - self._gained_s
        self.waiting += 1
        if now > since + self._max_age_s:
            self._ripen(version)
        else:
            version.wait = YOUNG
            self._young.add(number, version)

    def _bears_s(self, ahead: int) -> float:
        """Seconds for which a version can bear that no holder drains, as things are when its wait begins."""
        return (ahead // self._slots + 1) * self._max_age_s - (1 - 1 / self._slots) * self._longest_s

    def remove(self, version: Version, *, done: bool = True) -> None:
        """The version waits no longer, if it did.

        Args:
            done: it will not come back to where it waited, as one does that has to be staged again.
        """
        if done and version.wait is not NONE and self._visits >= DRAINS_SEEN and self._is_oldest(version):
            self._gained_s += self._longest_s / self._slots
        self._take(version)

    def _is_oldest(self, version: Version) -> bool:
        """Whether of all that wait it has waited longest."""
        firsts = (self._young.first(), self._old.first(), self._leaving.first())
        return all(first is None or version.began <= first for first in firsts)

    def _take(self, version: Version) -> None:
        wait = version.wait
        if wait is NONE:
            return
        version.wait = NONE
        self.waiting -= 1
        if wait is YOUNG:
            self._young.discard(version.began)
            return
        self._limits.take(version.limit)
        self._untils.take(version.until)
        (self._old if wait is OLD else self._leaving).discard(version.began)

    def pass_time(self, now: float) -> None:
        """Note who has become too old."""
        self._now = now
        young = self._young
        while (number := young.first()) is not None and now > young[number].since + self._max_age_s:
            version = young[number]
            young.discard(number)
            self._ripen(version)

    def _ripen(self, version: Version) -> None:
        if version.place is READY:
            self._stand(version)
        else:
            version.wait = LEAVING
            self._leaving.add(version.began, version)
        rounds_before = version.ahead // self._slots
        passes = floor(rounds_before * self._max_age_s / self._drain_s())
        version.limit = self._passed + passes
        self._limits.add(version.limit)
        self._untils.add(version.until)

    def _stand(self, version: Version) -> None:
        version.wait = OLD
        self._old.add(version.began, version)

    def _drain_s(self) -> float:
        """What is not known yet is endless."""
        return self._longest_s if self._longest_s and self._visits >= DRAINS_SEEN else inf

    def note_turn(self, version: Version) -> None:
        """The last free slot goes to a version."""
        oldest = self.oldest()
        if oldest is not None and oldest is not version:
            self._passed += self._turn()

    def note_visit(self, ran_s: float) -> None:
        """A slot is given up; the request that held it to the end ran that long. No drain takes longer."""
        self._visits += 1
        self._longest_s = max(ran_s, DRAIN_KEPT * self._longest_s)
