"""Transport of a gateway to its engine replicas, as this package needs it. :mod:`app.ray.handles` has Ray's."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, Self


class ReplicaLost(Exception):
    """The replica or its engine ended, or the connection to it broke. What it did for the request is not known.

    Attributes:
        reason: error with which the replica refused the request; None if it sent none.
    """

    def __init__(self, reason: Exception | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


class NoReplicas(Exception):
    """No replica runs."""


@dataclass(frozen=True, slots=True)
class Target:
    """Address of a request.

    Attributes:
        node_id: replica that the gateway has chosen, by the id of its HOME. None: any replica.
        version: content digest of the request's version; None for the base model.
    """

    node_id: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        """Format the target as the session id of a request in Ray."""
        return f"{self.version or ''}@{self.node_id or ''}"

    @classmethod
    def parse(cls, session_id: str) -> Self:
        """Parse a session id."""
        version, _, node_id = session_id.partition("@")
        return cls(node_id or None, version or None)


class Phase(Enum):
    """State of the deployment while no replica is ready.

    Attributes:
        ASLEEP: it has no replica, because none was needed.
        STARTING: replicas start or run.
        FAILED: replicas could not start, and Ray starts no more.
        ABSENT: there is no deployment.
    """

    ASLEEP = auto()
    STARTING = auto()
    FAILED = auto()
    ABSENT = auto()


@dataclass(frozen=True, slots=True)
class Deployed:
    """State of the deployment, with Ray's words about a failure."""

    phase: Phase
    reason: str = ""


class FrameStream(Protocol):
    """Frames of one answer, see :mod:`app.ray.wire`."""

    async def next(self) -> bytes | None:
        """Return the next frame, or None at the end.

        Raises:
            ReplicaLost
        """

    def cancel(self) -> None:
        """End the request at the replica, soon. Never fails."""


class Transport(Protocol):
    """Calls to engine replicas; arguments and results are messages of :mod:`app.ray.wire`."""

    def answer(self, request: bytes, *, target: Target) -> FrameStream:
        """Send a request to a replica. If the target has ended, another one gets it."""

    async def call(self, method: str, argument: bytes, *, target: Target) -> bytes:
        """Call a method of one replica, chosen as by :meth:`answer`.

        Raises:
            ReplicaLost
        """

    async def wake(self) -> None:
        """Wait until a replica runs. At zero replicas, this makes Ray start one.

        Raises:
            NoReplicas: there is no deployment, or its replicas cannot start.
            ReplicaLost: the replica has ended again.
        """

    async def deployed(self) -> Deployed:
        """Return the state of the deployment.

        Raises:
            ReplicaLost: the cluster does not answer.
        """

    async def call_all(self, method: str, argument: bytes, *, timeout_s: float) -> list[bytes]:
        """Call a method of every replica. Replicas that do not answer in time are left out."""

    async def close(self) -> None: ...
