"""Versions that wait for a slot: since when, who has waited too long, and who may still pass them."""

from math import ceil, floor, inf

from app.scheduling.queues import READY, Version
from app.scheduling.ranking import Ranking

#: How much of the longest visit's end is remembered at the next one, and after how many it says anything: turns that
#: were passed on because drains seemed short cannot be taken back.
DRAIN_KEPT = 0.99
DRAINS_SEEN = 8


class Ages:
    """How long versions have waited: staged ones without a slot, and those that drain with requests left waiting.

    Slots go round in fair order over tenants, so that a tenant with many adapters takes no more turns than others.
    Yet no version may wait longer than

        rounds x (max_age_s + one drain), rounds = ceil(versions up to and including it / slots).

    It is too old after ``max_age_s``, and its own turn and those of the versions before it take ``rounds`` drains.
    So in the (rounds - 1) x ``max_age_s`` that are left, turns of others may pass it: as many rounds of them as
    whole drains fit in.

    Attributes:
        waiting: the versions, by id.
    """

    def __init__(self, slots: int, max_age_s: float) -> None:
        self._slots, self._max_age_s = slots, max_age_s
        self.waiting: dict[int, Version] = {}
        #: By the moment at which they become old.
        self._young: Ranking[int, float] = Ranking()
        #: By the number of the event with which their wait began; those that drain are ``_leaving``.
        self._old: Ranking[int, int] = Ranking()
        self._leaving: dict[int, int] = {}
        #: The old ones by the value of ``_passed`` that they bear.
        self._limits: Ranking[int, float] = Ranking()
        #: Rounds of turns so far in which an old version was passed.
        self._passed = 0.0
        #: The longest that a drain can take, from what ended visits lately, and how many ended.
        self._longest_s = 0.0
        self._visits = 0

    @property
    def needs(self) -> int:
        """Slots that old versions need: one that drains will need another, but only if its own is needed."""
        return len(self._old) + len(self._leaving) if self._old else 0

    @property
    def oldest(self) -> Version | None:
        """Of those without a slot, the one that has waited longest, if too long."""
        entry = self._old.first()
        return self.waiting[entry[1]] if entry else None

    @property
    def passable(self) -> bool:
        """Whether one more turn may pass every old version."""
        limit = self._limits.first()
        return limit is None or self._passed + self._turn <= limit[0]

    @property
    def _turn(self) -> float:
        """The part of a round that one turn is: as many holders drain at a time as old versions wait."""
        return 1 / max(1, min(len(self._old), self._slots))

    def put(self, version: Version, now: float) -> None:
        """A version waits, has ceased to drain, or its oldest request is another one now."""
        version_id, number = version.version_id, _began(version)
        if number == self._old.get(version_id) or number == self._leaving.get(version_id):
            if version.place is READY and self._leaving.pop(version_id, None) is not None:
                self._old.set(version_id, number)
            return
        if version_id in self.waiting:
            self.remove(version_id)
        self.waiting[version_id] = version
        old_at = max(version.waiting.first.arrived, version.closed_at) + self._max_age_s
        if now > old_at:
            self._ripen(version, number)
        else:
            self._young.set(version_id, old_at)

    def remove(self, version_id: int) -> None:
        """The version waits no longer, if it did."""
        if self.waiting.pop(version_id, None) is None:
            return
        if version_id in self._young:
            self._young.discard(version_id)
        else:
            self._old.discard(version_id)
            self._leaving.pop(version_id, None)
            self._limits.discard(version_id)

    def pass_time(self, now: float) -> None:
        """Note who has become too old."""
        while (entry := self._young.first()) is not None and now > entry[0]:
            version = self.waiting[entry[1]]
            self._young.discard(entry[1])
            self._ripen(version, _began(version))

    def _ripen(self, version: Version, number: int) -> None:
        version_id = version.version_id
        if version.place is READY:
            self._old.set(version_id, number)
        else:
            self._leaving[version_id] = number
        rounds = ceil((version.ahead + 1) / self._slots)
        self._limits.set(version_id, self._passed + floor((rounds - 1) * self._max_age_s / self._drain_s))

    @property
    def _drain_s(self) -> float:
        """What is not known yet is endless."""
        return self._longest_s if self._longest_s and self._visits >= DRAINS_SEEN else inf

    def note_turn(self, version: Version) -> None:
        """The last free slot goes to a version."""
        oldest = self.oldest
        if oldest is not None and oldest is not version:
            self._passed += self._turn

    def note_visit(self, ran_s: float) -> None:
        """A slot is given up; the request that held it to the end ran that long. No drain takes longer."""
        self._visits += 1
        self._longest_s = max(ran_s, DRAIN_KEPT * self._longest_s)


def _began(version: Version) -> int:
    """The number of the event with which a version's wait began."""
    return max(version.waiting.first.number, version.closed)
