"""Unpinned versions that hold slots, by state: filling, joinable or draining."""

from app.scheduling.queues import Version
from app.scheduling.slot_waits import SlotWaits


class SlotHolders:
    """State of each version that may have to give up its slot.

    A version fills from its slot grant until all requests that waited for it are admitted. Filling ends early if the
    versions that wait for a slot have no slack left; see :class:`app.scheduling.slot_waits.SlotWaits`.

    Attributes:
        draining: versions that admit no further requests, by id.
    """

    def __init__(self, waits: SlotWaits) -> None:
        self._waits = waits
        #: The other versions.
        self._staying: dict[int, Version] = {}
        self.draining: dict[int, Version] = {}

    def add(self, version: Version, *, filling: bool) -> None:
        """Add a version whose first waiting request got a slot for it, or that was unpinned."""
        version.filling = filling
        self._staying[version.version_id] = version

    def remove(self, version: Version) -> None:
        """Remove a version that gives up its slot or is pinned."""
        version.filling = False
        del (self._staying if version.drains_since is None else self.draining)[version.version_id]

    def drain(self, now: float) -> Version | None:
        """Start to drain the joinable version with the most service.

        If every version that does not drain is filling, filling ends only when the waiting versions have no slack left.

        Returns:
            The version; None if there is no joinable one.
        """
        joinable = [version for version in self._staying.values() if not version.filling]
        if not joinable and not self._waits.can_bear():
            joinable = list(self._staying.values())
            for version in joinable:
                version.filling = False
        if not joinable:
            return None
        version = max(joinable, key=_service)
        version.drains_since = now
        self.draining[version.version_id] = self._staying.pop(version.version_id)
        return version

    def reopen(self, version: Version | None = None) -> Version:
        """Stop draining a version, by default the one with the least service."""
        version = version or min(self.draining.values(), key=_service)
        version.drains_since = None
        self._staying[version.version_id] = self.draining.pop(version.version_id)
        return version


def _service(version: Version) -> tuple[float, int]:
    return version.service, version.version_id
