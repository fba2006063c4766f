"""What names mean, remembered for as long as the registry stays as it is."""

from adapters.identity import ModelName
from app.database.resolution import Candidate, resolve
from app.database.revision import Revision
from app.database.session import Database
from app.support.single_flight import SingleFlight


class Resolutions:
    """Looks names up, once for every state of the registry where that can be told (SQLite), else each time.

    Once, however many ask at a time: after a commit every request that comes asks anew.

    So an answer is never older than its question. Names that mean nothing are not kept: anybody can make up as many
    as they like, and another tenant's must cost what one costs that does not exist.
    """

    def __init__(self, database: Database, *, capacity: int = 10_000) -> None:
        self._database, self._capacity = database, capacity
        self._known: dict[tuple[int, ModelName], list[Candidate]] = {}
        self._known_at: Revision | None = None
        self._look_ups = SingleFlight[list[Candidate]]()

    async def find(self, tenant_id: int, name: ModelName) -> list[Candidate]:
        """The versions that a name may mean for this tenant now, newest first; none if it means nothing.

        Raises:
            RegistryUnavailable
        """
        now = self._database.revision()
        if now is None:
            return await self._look_up(tenant_id, name)
        if now != self._known_at or len(self._known) >= self._capacity:
            self._known = {}
            self._known_at = now
        known = self._known
        if (found := known.get((tenant_id, name))) is not None:
            return found
        found = await self._look_ups.run((now, tenant_id, name), lambda: self._look_up(tenant_id, name))
        # Looked up after the revision was read: if anything was committed since, ``known`` is not asked again.
        if found:
            known[tenant_id, name] = found
        return found

    async def _look_up(self, tenant_id: int, name: ModelName) -> list[Candidate]:
        return await self._database.lookup(lambda connection: resolve(connection, tenant_id, name))
