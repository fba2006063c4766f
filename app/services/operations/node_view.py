"""Overview of all nodes: their heartbeats and engines, with the names of versions. For platform keys only."""

from dataclasses import dataclass

from app.database import events
from app.database.session import Database
from app.domain.node_snapshots import PlacedVersion
from app.services.operations.nodes import NodeService, Peer

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class NamedPlacement:
    """A version in a node's slots.

    Attributes:
        name: ``tenant/pricing@3``, or ``version 7`` if it is not in the registry.
    """

    name: str
    placed: PlacedVersion


@dataclass(frozen=True, slots=True)
class NodeOverview:
    """One node.

    Attributes:
        versions: the first ones of its snapshot.
    """

    peer: Peer
    versions: tuple[NamedPlacement, ...]


class NodeViewService:
    """Overview of all nodes on the registry. Any gateway can show it."""

    def __init__(self, database: Database, nodes: NodeService) -> None:
        self._database, self._nodes = database, nodes

    async def nodes(self, limit: int) -> list[NodeOverview]:
        """List all nodes, each with at most ``limit`` versions.

        Raises:
            RegistryUnavailable
        """
        peers = await self._nodes.peers()
        shown = {peer.node.id: peer.state.snapshot.versions[:limit] if peer.state.snapshot else () for peer in peers}
        names = await self._names({placed.version_id for versions in shown.values() for placed in versions})
        return [
            NodeOverview(
                peer,
                tuple(
                    NamedPlacement(names.get(placed.version_id, f"version {placed.version_id}"), placed)
                    for placed in shown[peer.node.id]
                ),
            )
            for peer in peers
        ]

    async def _names(self, ids: set[int]) -> dict[int, str]:
        ordered = sorted(ids)
        names: dict[int, str] = {}
        for start in range(0, len(ordered), _AT_ONCE):
            async with self._database.read() as connection:
                found = await events.version_names(connection, ordered[start : start + _AT_ONCE])
            names |= {version_id: f"{tenant}/{name}" for version_id, (tenant, name) in found.items()}
        return names
