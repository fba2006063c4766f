"""Guard of an engine node whose requests were resolved by other processes: deleted versions are never loaded again.

A gateway resolves a name, and its request may reach this node after the node has confirmed the version's deletion.
So before a request of a version that this node does not know, its state is read from the registry::

    request    enter ---- state read ---- engine.answer (leases) ----> left
    deletion        row deleted -> barrier(): forget ........ passed ----> unload, verify

A version stays known until a deletion of it begins here.
"""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from adapters.identity import VersionKey
from app.database import version_references
from app.database.session import Database
from app.domain.adapters import VersionState
from app.domain.errors import NotFound
from app.services.common.in_flight import Barrier, InFlightLookups


class VersionGuard(InFlightLookups):
    """In-flight requests of an engine node, with the versions that are known to exist."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._known: set[int] = set()
        self._deletions = 0

    @asynccontextmanager
    async def request(self, key: VersionKey | None) -> AsyncIterator[None]:
        """Read section of a request: enclose the call that leases its version in the engine.

        Raises:
            NotFound: the version was deleted.
            RegistryUnavailable
        """
        with self.lookup() as lookup:
            lookup.resolved(key.version_id if key else None)
            if key and key.version_id not in self._known:
                await self._check(key.version_id)
            yield

    def barrier(self, version_ids: Collection[int]) -> Barrier:
        """Forget these versions and start a grace period, see :class:`InFlightLookups`."""
        self._known.difference_update(version_ids)
        self._deletions += 1
        return super().barrier(version_ids)

    async def _check(self, version_id: int) -> None:
        deletions = self._deletions
        async with self._database.read() as connection:
            state = await version_references.state_of(connection, version_id)
        if state in (None, VersionState.DELETED):
            raise NotFound("This version of the adapter was deleted.", param="model")
        if deletions == self._deletions:
            # Else the state may be older than a deletion that has begun meanwhile.
            self._known.add(version_id)
