"""Look-ups that a server repeats every second, spared as long as nobody has changed anything."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.revision import Revision
from app.database.session import Database

Found = TypeVar("Found")


class CachedQuery(Generic[Found]):
    """A look-up that is made again only once the audit trail has grown; on PostgreSQL, always.

    Whatever somebody changes has its row in the trail with the same commit: versions, aliases, canaries, pins, prices,
    deletions. What servers write down by themselves has none: usage, figures of canaries, what nodes confirm.

    Args:
        look: the look-up.
        kept: whether what was found holds until the trail grows: not if what servers write down changes it.
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
        """What the registry says now.

        Raises:
            RegistryUnavailable
        """
        # Before the look-up: of what is changed meanwhile it may see nothing.
        end = self._database.end_of_trail()
        if end is None or end != self._end:
            async with self._database.read() as connection:
                self._found = await self._look(connection)
            self._end = end if self._kept(self._found) else None
        return self._found
