"""Name resolution cache: valid for a second, or until this server's next write."""

import time
from collections.abc import Callable

from cachetools import TTLCache

from adapters.identity import ModelName
from app.database.resolution import Candidate, resolve
from app.database.session import Database
from app.support.single_flight import SingleFlight

_TTL_S = 1.0


class Resolutions:
    """Resolves model names. Caches them on SQLite, where this server alone changes them.

    After a write of this server, every new request looks up again. An answer is therefore never older than its
    question. The TTL limits how long a write of another process stays unseen. Concurrent lookups of one name share a
    query (single-flight). On PostgreSQL every call runs a query, because other servers write too.

    Unknown names are not cached. A client can invent any number of them, and a name of another tenant must cost as much
    as a name that does not exist.
    """

    def __init__(
        self, database: Database, *, capacity: int = 10_000, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._cache = TTLCache[tuple[int, ModelName], list[Candidate], float](capacity, _TTL_S, monotonic)
        self._generation = database.generation
        self._look_ups = SingleFlight[list[Candidate]]()

    async def find(self, tenant_id: int, name: ModelName) -> list[Candidate]:
        """Return the versions that a name may stand for, the newest first; empty if the name is unknown.

        Raises:
            RegistryUnavailable
        """
        if self._database.is_postgresql:
            return await self._look_up(tenant_id, name)
        generation = self._database.generation
        if generation != self._generation:
            self._cache.clear()
            self._generation = generation
        if (candidates := self._cache.get((tenant_id, name))) is not None:
            return candidates
        candidates = await self._look_ups.run((generation, tenant_id, name), lambda: self._look_up(tenant_id, name))
        # A lookup that overlapped a write may have read the old state.
        if candidates and generation == self._database.generation:
            self._cache[tenant_id, name] = candidates
        return candidates

    async def _look_up(self, tenant_id: int, name: ModelName) -> list[Candidate]:
        return await self._database.lookup(lambda connection: resolve(connection, tenant_id, name))
