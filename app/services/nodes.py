"""This server among its peers: it says that it is alive, and knows who else is."""

import logging
from datetime import datetime

from app.clock import Clock, utc_now
from app.database import nodes as stored
from app.database.session import Database
from app.deletions import Node

logger = logging.getLogger(__name__)

#: Seconds between two signs of life; a node counts as alive for six of them (``app.deletions.ALIVE_S``).
HEARTBEAT_S = 5.0


class NodeService:
    """One node's signs of life.

    Args:
        node: its id, see :mod:`app.node`.
        name: for people.
    """

    def __init__(self, database: Database, node: str, name: str, *, clock: Clock = utc_now) -> None:
        self.id = node
        self._database, self._name, self._clock = database, name, clock

    async def register(self) -> None:
        """Say that this node has started; before it serves anyone.

        Raises:
            RegistryUnavailable
        """
        async with self._database.write() as connection:
            await stored.register(connection, self.id, self._name, at=self._clock())

    async def beat(self) -> None:
        """Say that this node is alive.

        Raises:
            RegistryUnavailable
        """
        async with self._database.write() as connection:
            known = await stored.seen(connection, self.id, at=self._clock())
        if not known:
            logger.warning("this node was forgotten by the registry and registers again")
            await self.register()

    async def all(self) -> tuple[list[Node], datetime]:
        """Every node, and the moment that their ``alive`` is to be judged by.

        Raises:
            RegistryUnavailable
        """
        async with self._database.read() as connection:
            return await stored.list_nodes(connection), self._clock()
