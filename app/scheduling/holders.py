"""Versions that hold slots and are not pinned: which of them fill, which may be joined, which drain."""

from app.scheduling.ages import Ages
from app.scheduling.queues import Version
from app.scheduling.ranking import Ranking


class Holders:
    """One place for each version that may have to give its slot up.

    One that got its slot fills until all that waited for it have been let in. Once others need its slot, it is given
    time for that, where these can bear it; see :class:`app.scheduling.ages.Ages`.

    Args:
        versions: those that wait or run, by id; kept by the caller.

    Attributes:
        draining: those that nobody joins; ``staying`` is how many others there are.
    """

    def __init__(self, ages: Ages, versions: dict[int, Version]) -> None:
        self._ages, self._versions = ages, versions
        #: Those that fill: whom nobody has asked for their slot, and by when it is to be done.
        self._new: dict[int, Version] = {}
        self._filling: Ranking[int, float] = Ranking()
        #: All that hold slots and neither fill nor drain.
        self._joinable: dict[int, Version] = {}
        self.draining: dict[int, Version] = {}
        self.staying = 0

    def add(self, version: Version, *, filling: bool) -> None:
        """It has got its slot, and the first that waited for it is in; or it is pinned no longer."""
        version.filling = filling
        self.staying += 1
        (self._new if filling else self._joinable)[version.version_id] = version

    def filled(self, version: Version) -> None:
        """All that waited for one that fills are in, or had their time."""
        if self._new.pop(version.version_id, None) is None:
            self._filling.discard(version.version_id)
            self._ages.end_filling()
        version.filling = False
        self._joinable[version.version_id] = version

    def remove(self, version: Version) -> None:
        """It gives its slot up, or is pinned."""
        if version.drains_since is not None:
            del self.draining[version.version_id]
            return
        if version.filling:
            self.filled(version)
        del self._joinable[version.version_id]
        self.staying -= 1

    def drain(self, now: float) -> Version | None:
        """Let the one with the most service drain; None if all that do not drain fill and have time for it."""
        joinable = self._joinable
        if not joinable and (self._new or self._filling):
            self._end_filling(now)
        if not joinable:
            return None
        version = max(joinable.values(), key=_service)
        version.drains_since = now
        self.staying -= 1
        self.draining[version.version_id] = joinable.pop(version.version_id)
        return version

    def reopen(self, version: Version | None = None) -> Version:
        """Let one that drains be joined again, if none is said that with the least service."""
        version = version or min(self.draining.values(), key=_service)
        version.drains_since = None
        self.staying += 1
        self._joinable[version.version_id] = self.draining.pop(version.version_id)
        return version

    def _end_filling(self, now: float) -> None:
        """Time is up for some, and new ones are given theirs."""
        while (entry := self._filling.first()) is not None and (now >= entry[0] or self._ages.overdrawn()):
            self.filled(self._versions[entry[1]])
        while self._new:
            version = next(iter(self._new.values()))
            if seconds := self._ages.begin_filling():
                del self._new[version.version_id]
                self._filling.set(version.version_id, now + seconds)
            else:
                self.filled(version)


def _service(version: Version) -> tuple[float, int]:
    return version.service, version.version_id
