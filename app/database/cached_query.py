"""Cache for queries that a server repeats every second, valid until the registry changes."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.revision import Revision
from app.database.session import Database

Found = TypeVar("Found")


class CachedQuery(Generic[Found]):
    """Cached query, invalidated by new rows in the audit trail; on PostgreSQL it always runs again.

    Every change by a user has a row in the audit trail in the same commit: versions, aliases, canaries, pins, prices
    and deletions. Writes by the servers have none: usage, figures of canaries, confirmations of nodes.

    Args:
        database: the registry's database.
        look: the query.
        kept: predicate for results that may be cached; False for results that writes by servers can change.
    """

    def __init__(
        self,
        database: Database,
        look: Callable[[AsyncConnection], Awaitable[Found]],
        *,
        kept: Callable[[Found], bool] = lambda _: True,
    ) -> None:
        self._database, self._look, self._kept = database, look, kept
        self._found: Found
        self._end: Revision | None = None

    async def __call__(self) -> Found:
        """Return the current result of the query.

        Raises:
            RegistryUnavailable: the database does not respond.
        """
        # Read before the query, because the query may miss changes that commit meanwhile.
        end = self._database.end_of_trail()
        if end is None or end != self._end:
            async with self._database.read() as connection:
                self._found = await self._look(connection)
            self._end = end if self._kept(self._found) else None
        return self._found
