"""Snapshots of the engines of all nodes, as frozen data."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal


class NodeRole(StrEnum):
    """Role of a node."""

    #: A gateway with an engine in its process.
    SERVER = "server"
    #: A server whose engines are replicas. It has no engine.
    GATEWAY = "gateway"
    #: An engine replica behind gateways.
    REPLICA = "replica"


@dataclass(frozen=True, slots=True)
class PlacedVersion:
    """A version in a slot, or on its way there."""

    version_id: int
    tier: Literal["slot", "loading"]
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """State of a node's engine.

    Attributes:
        state: a value of :class:`app.engine.status.EngineState`.
        loads: adapters that were copied into a slot since the engine's start.
        versions: versions with requests first, at most :data:`app.services.operations.node_snapshot.MAX_VERSIONS`.
        more_versions: number of versions that are left out.
        pinned: number of pinned versions.
    """

    state: str
    slots: int
    slots_used: int
    running: int
    waiting: int
    restarts: int = 0
    hangs: int = 0
    loads: int = 0
    pinned: int = 0
    host_bytes: int = 0
    host_used_bytes: int = 0
    disk_bytes: int = 0
    disk_used_bytes: int = 0
    tokens_per_s: float | None = None
    queued_tokens: float = 0.0
    device: str = ""
    versions: tuple[PlacedVersion, ...] = ()
    more_versions: int = 0


@dataclass(frozen=True, slots=True)
class NodeReport:
    """State of a node that goes with its heartbeat.

    Attributes:
        base_digest: base of its engine.
        slots: slots for which versions may be pinned there. None until its engine was ready once, and for a gateway.
        snapshot: None for a gateway.
    """

    role: NodeRole
    base_digest: str
    slots: int | None = None
    snapshot: NodeSnapshot | None = None


@dataclass(frozen=True, slots=True)
class NodeState:
    """Last report of a node.

    Attributes:
        role: None for a node of a release that wrote none.
        at: time of the snapshot by the node's own clock; None without one.
    """

    node: str
    role: NodeRole | None
    snapshot: NodeSnapshot | None
    at: datetime | None
