"""Pins of a fleet: each pinned version is in the first replicas of its ranking only."""

import time
from collections.abc import Callable, Mapping

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import nodes
from app.domain.clock import Clock, utc_now
from app.domain.pins import Pin
from app.engine.port import Status
from app.scheduling.pin_assignment import ABSENT_S, Members, assigned, pin_capacity


class FleetPins:
    """Choice of the pins of one replica, from the rows of all replicas of its base.

    A new replica loads its pins before its first heartbeat shows it to the others, which then give them up.

    Args:
        node: id of this replica's node.
        copies: replicas of each pinned version.
    """

    def __init__(
        self,
        engine: Status,
        node: str,
        base_digest: str,
        *,
        copies: int,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._node, self._base_digest, self._copies = engine, node, base_digest, copies
        self._clock, self._monotonic, self._members = clock, monotonic, Members()

    async def own(self, connection: AsyncConnection, pins: Mapping[int, Pin]) -> dict[int, Pin]:
        """Return the pins of this replica, out of all pins, oldest first.

        Raises:
            RegistryUnavailable
        """
        replicas = await nodes.list_replicas(connection, self._base_digest, now=self._clock())
        fleet = dict(self._members.observe(replicas, self._monotonic()))
        fleet[self._node] = self._engine.status().slots
        digests = [(version_id, pin.key.digest) for version_id, pin in pins.items()]
        mine = assigned(self._node, digests, tuple(sorted(fleet.items())), copies=self._copies)
        return {version_id: pin for version_id, pin in pins.items() if version_id in mine}


class FleetRoom:
    """Number of versions that can be pinned in the replicas of a base.

    Args:
        copies: replicas of each pinned version.
    """

    def __init__(self, base_digest: str, *, copies: int, clock: Clock = utc_now) -> None:
        self._base_digest, self._copies, self._clock = base_digest, copies, clock

    async def pins(self, connection: AsyncConnection) -> int:
        """Return the number. Each replica keeps one slot unpinned.

        Raises:
            RegistryUnavailable
        """
        replicas = await nodes.list_replicas(connection, self._base_digest, now=self._clock())
        # While all replicas are scaled down, the last ones count: they return with the next request.
        present = [replica for replica in replicas if replica.absent_s < ABSENT_S] or replicas
        return pin_capacity(tuple((replica.node_id, replica.slots) for replica in present), copies=self._copies)
