"""This server among its peers: it says that it is alive, and knows who else is."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import nodes as nodes_repo
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.deletions import Node

logger = logging.getLogger(__name__)

#: Seconds between two signs of life; a node counts as alive for six of them (``app.domain.deletions.ALIVE_S``).
HEARTBEAT_S = 5.0
#: Seconds that the clocks of two nodes may be apart.
MOST_APART_S = 5.0
#: An answer that takes longer tells too little of the database's clock.
_SLOW_S = 2.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A node as another one sees it.

    Attributes:
        clock_ahead_s: its clock minus that of the server that looks; None: not known.
    """

    node: Node
    alive: bool
    clock_ahead_s: float | None

    @property
    def clock_apart(self) -> bool:
        """Whether the two clocks are too far apart: keys, limits and deletions go by them."""
        return self.clock_ahead_s is not None and abs(self.clock_ahead_s) > MOST_APART_S


class NodeService:
    """One node's signs of life.

    Args:
        node: its id, see :mod:`app.wiring.node`.
        name: for people.
    """

    #: This server's clock minus the database's, in seconds; None: not known.
    clock_offset_s: float | None = None
    #: The largest distance between the clocks of nodes that are alive, in seconds.
    clock_spread_s = 0.0

    def __init__(self, database: Database, node: str, name: str, *, clock: Clock = utc_now) -> None:
        self.id = node
        self._database, self._name, self._clock = database, name, clock
        self._apart: frozenset[str] = frozenset()

    async def register(self) -> None:
        """Say that this node has started; before it serves anyone.

        Raises:
            RegistryUnavailable
        """
        async with self._database.write() as connection:
            await nodes_repo.register(connection, self.id, self._name, at=self._clock())

    async def beat(self) -> None:
        """Say that this node is alive.

        Raises:
            RegistryUnavailable
        """
        async with self._database.write() as connection:
            offset = await self._offset(connection)
            known = await nodes_repo.seen(connection, self.id, at=self._clock(), clock_offset_s=offset)
            nodes = await nodes_repo.list_nodes(connection)
        if not known:
            logger.warning("this node was forgotten by the registry and registers again")
            await self.register()
        self._compare(offset, nodes)

    async def peers(self) -> list[Peer]:
        """Every node that is not forgotten, this one too, as this one sees them.

        Raises:
            RegistryUnavailable
        """
        async with self._database.read() as connection:
            nodes = await nodes_repo.list_nodes(connection)
        now = self._clock()
        return [Peer(node, self._is_alive(node, now), self._ahead_s(node)) for node in nodes]

    async def _offset(self, connection: AsyncConnection) -> float | None:
        """This clock minus the database's; None where there is no answer in good time."""
        asked = self._clock()
        theirs = await nodes_repo.database_time(connection)
        answered = self._clock()
        if theirs is None or abs((answered - asked).total_seconds()) > _SLOW_S:
            return None
        return (asked + (answered - asked) / 2 - theirs).total_seconds()

    def _compare(self, offset: float | None, nodes: Sequence[Node]) -> None:
        self.clock_offset_s = offset
        now = self._clock()
        alive = [node for node in nodes if self._is_alive(node, now)]
        offsets = [node.clock_offset_s for node in alive if node.clock_offset_s is not None]
        self.clock_spread_s = max(offsets) - min(offsets) if offsets else 0.0
        ahead = {node.id: (node, seconds) for node in alive if (seconds := self._ahead_s(node)) is not None}
        apart = {number: found for number, found in ahead.items() if abs(found[1]) > MOST_APART_S}
        for node, seconds in (found for number, found in apart.items() if number not in self._apart):
            way = "ahead of" if seconds > 0 else "behind"
            logger.warning(
                "the clock of node %s (%s) is %.1f s %s this server's: set both by NTP",
                node.name,
                node.id,
                abs(seconds),
                way,
            )
        self._apart = frozenset(apart)

    def _is_alive(self, node: Node, now: datetime) -> bool:
        """Whether it was seen lately, its clock's offset and this one's taken into account."""
        return node.alive(now + timedelta(seconds=self._ahead_s(node) or 0.0))

    def _ahead_s(self, node: Node) -> float | None:
        if self.clock_offset_s is None or node.clock_offset_s is None:
            return None
        return node.clock_offset_s - self.clock_offset_s
