"""Versions that hold slots and are not pinned: which of them fill, which may be joined, which drain."""

from app.scheduling.queues import Version
from app.scheduling.slot_waits import SlotWaits


class SlotHolders:
    """One place for each version that may have to give its slot up.

    One that got its slot fills until all that waited for it have been let in, or those that need its slot can bear no
    more; see :class:`app.scheduling.slot_waits.SlotWaits`.

    Attributes:
        draining: those that nobody joins; ``staying`` is how many others there are.
    """

    def __init__(self, ages: SlotWaits) -> None:
        self._ages = ages
        self._filling: dict[int, Version] = {}
        #: All that hold slots and neither fill nor drain.
        self._joinable: dict[int, Version] = {}
        self.draining: dict[int, Version] = {}
        self.staying = 0

    def add(self, version: Version, *, filling: bool) -> None:
        """It has got its slot, and the first that waited for it is in; or it is pinned no longer."""
        version.filling = filling
        self.staying += 1
        (self._filling if filling else self._joinable)[version.version_id] = version

    def filled(self, version: Version) -> None:
        """All that waited for one that fills are in, or time is up."""
        del self._filling[version.version_id]
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
        """Let the one with the most service drain; None if all that do not drain fill, and others can bear that."""
        joinable = self._joinable
        if not joinable and self._filling and not self._ages.can_bear():
            for version in list(self._filling.values()):
                self.filled(version)
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


def _service(version: Version) -> tuple[float, int]:
    return version.service, version.version_id
