"""Node registry: send this server's heartbeats, and track which peers are alive and how far their clocks differ."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import nodes as nodes_repo
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.deletions import Node
from app.domain.node_snapshots import NodeReport, NodeState
from app.scheduling.pin_assignment import ABSENT_S

logger = logging.getLogger(__name__)

#: Seconds between two heartbeats. A node counts as alive for six of them (``app.domain.deletions.ALIVE_S``).
HEARTBEAT_S = 5.0
#: Seconds that the clocks of two nodes may differ.
MOST_APART_S = 5.0
#: Seconds. A slower round trip to the database says too little about the database's clock.
_SLOW_S = 2.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A node as seen by another node.

    Attributes:
        clock_ahead_s: node's clock minus the observer's clock, in seconds; None if unknown.
        state: last report of the node.
        snapshot_age_s: age of its snapshot in seconds, corrected for the clocks; None without a snapshot.
    """

    node: Node
    alive: bool
    clock_ahead_s: float | None
    state: NodeState
    snapshot_age_s: float | None = None

    @property
    def clock_apart(self) -> bool:
        """Return whether the two clocks differ too much. Keys, limits and deletions depend on clocks."""
        return self.clock_ahead_s is not None and abs(self.clock_ahead_s) > MOST_APART_S


class NodeService:
    """Heartbeats of one node.

    Args:
        node: id of the node, see :mod:`app.wiring.node`.
        name: display name.
        report: returns the state that goes with each heartbeat.

    Raises (every method):
        RegistryUnavailable
    """

    #: This server's clock minus the database's clock, in seconds; None if unknown.
    clock_offset_s: float | None = None
    #: Largest difference between the clocks of live nodes, in seconds.
    clock_spread_s = 0.0

    def __init__(
        self,
        database: Database,
        node: str,
        name: str,
        *,
        report: Callable[[], NodeReport] | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self.id, self._report = node, report
        self._database, self._name, self._clock = database, name, clock
        self._apart: frozenset[str] = frozenset()

    async def register(self) -> None:
        """Register this node at startup. Call it before serving requests."""
        async with self._database.write() as connection:
            await nodes_repo.register(connection, self.id, self._name, at=self._clock(), member_s=ABSENT_S)

    async def beat(self) -> None:
        """Send a heartbeat with the state of the engine, and compare the clocks of all nodes."""
        report = self._report() if self._report else None
        async with self._database.write() as connection:
            offset = await self._offset(connection)
            is_registered = await nodes_repo.seen(
                connection, self.id, at=self._clock(), clock_offset_s=offset, report=report
            )
            nodes = await nodes_repo.list_nodes(connection)
        if not is_registered:
            logger.warning("The registry has forgotten this node. The node registers again.")
            await self.register()
        self._compare(offset, nodes)

    async def peers(self) -> list[Peer]:
        """List every node that is not forgotten, including this one, as this one sees them."""
        async with self._database.read() as connection:
            nodes = await nodes_repo.list_nodes(connection)
            states = await nodes_repo.list_states(connection)
        now = self._clock()
        # Autocommit: a node may register between the two statements.
        return [self._peer(node, states.get(node.id, NodeState(node.id, None, None, None)), now) for node in nodes]

    def _peer(self, node: Node, state: NodeState, now: datetime) -> Peer:
        ahead_s, age_s = self._ahead_s(node), None
        if state.at is not None:
            age_s = max(0.0, (now - state.at).total_seconds() + (ahead_s or 0.0))
        return Peer(node, self._is_alive(node, now), ahead_s, state, age_s)

    async def _offset(self, connection: AsyncConnection) -> float | None:
        """Return this clock minus the database's in seconds; None if the database did not answer in time."""
        asked_at = self._clock()
        theirs = await nodes_repo.database_time(connection)
        answered_at = self._clock()
        if theirs is None or abs((answered_at - asked_at).total_seconds()) > _SLOW_S:
            return None
        return (asked_at + (answered_at - asked_at) / 2 - theirs).total_seconds()

    def _compare(self, offset: float | None, nodes: Sequence[Node]) -> None:
        self.clock_offset_s = offset
        now = self._clock()
        alive = [node for node in nodes if self._is_alive(node, now)]
        offsets = [node.clock_offset_s for node in alive if node.clock_offset_s is not None]
        self.clock_spread_s = max(offsets) - min(offsets) if offsets else 0.0
        ahead = {node.id: (node, seconds) for node in alive if (seconds := self._ahead_s(node)) is not None}
        apart = {node_id: entry for node_id, entry in ahead.items() if abs(entry[1]) > MOST_APART_S}
        for node, seconds in (entry for node_id, entry in apart.items() if node_id not in self._apart):
            way = "ahead of" if seconds > 0 else "behind"
            logger.warning(
                "The clock of node %s (%s) is %.1f s %s this server's. Synchronize both with NTP.",
                node.name,
                node.id,
                abs(seconds),
                way,
            )
        self._apart = frozenset(apart)

    def _is_alive(self, node: Node, now: datetime) -> bool:
        """Return whether the node was seen recently, corrected for the offset between the two clocks."""
        return node.alive(now + timedelta(seconds=self._ahead_s(node) or 0.0))

    def _ahead_s(self, node: Node) -> float | None:
        if self.clock_offset_s is None or node.clock_offset_s is None:
            return None
        return node.clock_offset_s - self.clock_offset_s
