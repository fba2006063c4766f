"""What names mean, remembered for as long as the registry stays as it is."""

from collections.abc import Callable

from adapters.identity import ModelName
from app.database.resolution import Candidate, resolve
from app.database.revision import Revision
from app.database.session import Database


class Resolutions:
    """Looks names up, once for every state of the registry where that can be told (SQLite), else each time.

    So an answer is never older than its question. Names that mean nothing are not kept: anybody can make up as many
    as they like, and another tenant's must cost what one costs that does not exist.
    """

    def __init__(self, database: Database, revision: Callable[[], Revision | None], *, capacity: int = 10_000) -> None:
        self._database, self._revision, self._capacity = database, revision, capacity
        self._known: dict[tuple[int, ModelName], list[Candidate]] = {}
        self._known_at: Revision | None = None

    async def find(self, tenant_id: int, name: ModelName) -> list[Candidate]:
        """The versions that a name may mean for this tenant now, newest first; none if it means nothing.

        Raises:
            RegistryUnavailable
        """
        now = self._revision()
        if now is None or now != self._known_at or len(self._known) >= self._capacity:
            self._known = {}
            self._known_at = now
        known = self._known
        if (found := known.get((tenant_id, name))) is not None:
            return found
        found = await self._database.lookup(lambda connection: resolve(connection, tenant_id, name))
        # Looked up after the revision was read: if anything was committed since, ``known`` is not asked again.
        if found and now is not None:
            known[tenant_id, name] = found
        return found
