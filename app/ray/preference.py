"""Order in which Ray's request router tries the replicas. Without Ray, so that tests need no cluster."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict, TypeVar

from app.ray.transport import Target
from app.scheduling.rendezvous import ranking


class RoutingStats(TypedDict):
    """Result of a replica's ``record_routing_stats``. It stays the same, so Ray sends it to the gateways once.

    Attributes:
        node: id of the replica's HOME.
        slots: its number of LoRA slots.
    """

    node: str
    slots: int


class Replica(Protocol):
    """Replica of Ray, as this module uses it.

    Attributes:
        routing_stats: its :class:`RoutingStats`; empty until Ray has asked for them.
    """

    @property
    def routing_stats(self) -> Mapping[str, Any]: ...


R = TypeVar("R", bound=Replica)


def preferred(target: Target, replicas: Sequence[R]) -> list[list[R]]:
    """Return the replicas in the order of preference: the target, the version's ranking, all others.

    Ray takes the least loaded replica of the first list, and the next list if none of its replicas answers.
    """
    known = {str(replica.routing_stats["node"]): replica for replica in replicas if "node" in replica.routing_stats}
    order: list[list[R]] = [[known[target.node_id]]] if target.node_id in known else []
    if target.version:
        fleet = tuple(sorted((node, int(replica.routing_stats["slots"])) for node, replica in known.items()))
        order += [[known[node]] for node in ranking(target.version, fleet) if node != target.node_id]
    placed = {id(replica) for rank in order for replica in rank}
    if others := [replica for replica in replicas if id(replica) not in placed]:
        order.append(others)
    return order
