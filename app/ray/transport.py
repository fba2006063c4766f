"""Transport of a gateway to its engine replicas, as this package needs it. :mod:`app.ray.handles` has Ray's."""

from typing import Protocol


class ReplicaLost(Exception):
    """The replica ended, or the connection to it broke. What it did for the request is not known."""


class NoReplicas(Exception):
    """No replica runs."""


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

    def answer(self, request: bytes, *, version: str | None) -> FrameStream:
        """Send a request to a replica.

        Args:
            version: content digest of the request's version; None for the base model.
        """

    async def call(self, method: str, argument: bytes, *, version: str | None = None) -> bytes:
        """Call a method of one replica.

        Raises:
            ReplicaLost
        """

    async def call_all(self, method: str, argument: bytes, *, timeout_s: float) -> list[bytes]:
        """Call a method of every replica. Replicas that do not answer in time are left out."""

    async def close(self) -> None: ...
