"""Unpinned versions that hold slots, by state: filling, joinable or draining."""

from app.scheduling.queues import Version
from app.scheduling.slot_waits import SlotWaits


class SlotHolders:
    """State of each version that may have to give up its slot.

    A version fills from its slot grant until all requests that waited for it are admitted. Filling ends early if the
    versions that wait for a slot have no slack left; see :class:`app.scheduling.slot_waits.SlotWaits`.

    Attributes:
        draining: versions that admit no further requests, by id.
        staying: number of the other versions.
    """

    def __init__(self, waits: SlotWaits) -> None:
        self._waits = waits
        self._filling: dict[int, Version] = {}
        #: Slot holders that neither fill nor drain.
        self._joinable: dict[int, Version] = {}
        self.draining: dict[int, Version] = {}
        self.staying = 0

    def add(self, version: Version, *, filling: bool) -> None:
        """Add a version whose first waiting request got a slot for it, or that was unpinned."""
        version.filling = filling
        self.staying += 1
        (self._filling if filling else self._joinable)[version.version_id] = version

    def filled(self, version: Version) -> None:
        """End the filling of a version: its waiting requests are admitted, or time is up."""
        del self._filling[version.version_id]
        version.filling = False
        self._joinable[version.version_id] = version

    def remove(self, version: Version) -> None:
        """Remove a version that gives up its slot or is pinned."""
        if version.drains_since is not None:
            del self.draining[version.version_id]
            return
        if version.filling:
            self.filled(version)
        del self._joinable[version.version_id]
        self.staying -= 1

    def drain(self, now: float) -> Version | None:
        """Start to drain the joinable version with the most service.

        If every version that does not drain is filling, filling ends only when the waiting versions have no slack left.

        Returns:
            The version; None if there is no joinable one.
        """
        joinable = self._joinable
        if not joinable and self._filling and not self._waits.can_bear():
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
        """Stop draining a version, by default the one with the least service."""
        version = version or min(self.draining.values(), key=_service)
        version.drains_since = None
        self.staying += 1
        self._joinable[version.version_id] = self.draining.pop(version.version_id)
        return version


def _service(version: Version) -> tuple[float, int]:
    return version.service, version.version_id
