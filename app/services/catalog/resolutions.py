"""Name resolution cache: valid until the registry changes."""

from adapters.identity import ModelName
from app.database.resolution import Candidate, resolve
from app.database.revision import Revision
from app.database.session import Database
from app.support.single_flight import SingleFlight


class Resolutions:
    """Resolves model names, cached for one revision of the registry.

    Only SQLite reports a revision; on other databases every call runs a query. Concurrent lookups of one name in one
    revision share a query (single-flight). After a commit, every new request looks up again. An answer is therefore
    never older than its question.

    Unknown names are not cached. A client can invent any number of them, and a name of another tenant must cost as much
    as a name that does not exist.
    """

    def __init__(self, database: Database, *, capacity: int = 10_000) -> None:
        self._database, self._capacity = database, capacity
        self._cache: dict[tuple[int, ModelName], list[Candidate]] = {}
        self._revision: Revision | None = None
        self._look_ups = SingleFlight[list[Candidate]]()

    async def find(self, tenant_id: int, name: ModelName) -> list[Candidate]:
        """Return the versions that a name may stand for, the newest first; empty if the name is unknown.

        Raises:
            RegistryUnavailable
        """
        revision = self._database.revision()
        if revision is None:
            return await self._look_up(tenant_id, name)
        if revision != self._revision or len(self._cache) >= self._capacity:
            self._cache = {}
            self._revision = revision
        cache = self._cache
        if (candidates := cache.get((tenant_id, name))) is not None:
            return candidates
        candidates = await self._look_ups.run((revision, tenant_id, name), lambda: self._look_up(tenant_id, name))
        # The lookup began after the revision was read. If a commit came in between, ``cache`` is not used again.
        if candidates:
            cache[tenant_id, name] = candidates
        return candidates

    async def _look_up(self, tenant_id: int, name: ModelName) -> list[Candidate]:
        return await self._database.lookup(lambda connection: resolve(connection, tenant_id, name))
