"""Times of use of API keys, collected in memory and written once a minute, so that a request pays nothing for them."""

from datetime import datetime

from app.database import keys
from app.database.session import Database

#: Seconds between two writes.
EVERY_S = 60.0


class KeyUses:
    """Latest use of each key on this server since the last write. Only keys that work are noted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._uses: dict[str, datetime] = {}

    def note(self, key_id: str, at: datetime) -> None:
        """Note a use of a key."""
        self._uses[key_id] = at

    async def write(self) -> None:
        """Store the uses. Those that could not be stored stay for the next call.

        Raises:
            RegistryUnavailable
        """
        taken, self._uses = self._uses, {}
        if not taken:
            return
        try:
            async with self._database.write() as connection:
                await keys.set_used(connection, taken)
        except BaseException:
            self._uses = taken | self._uses
            raise
