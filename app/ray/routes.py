"""Routes of a gateway: the routing rule on the replicas' reports, and the end of each route."""

import time
from collections.abc import Callable, Collection
from typing import Self

from app.ray.transport import Target
from app.scheduling.replica_report import ReplicaReport
from app.scheduling.routing import Route, Router


class Attempt:
    """Request on its way to one replica. End it with :meth:`finish`, whatever becomes of it.

    Attributes:
        target: address of the request.
    """

    def __init__(self, router: Router, route: Route | None, version: str | None) -> None:
        self._router, self._route = router, route
        self.target = Target(route.node_id if route else None, version)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.finish()

    def arrived(self, node_id: str) -> None:
        """Count the request at the node that has it: Ray sends it to another one if the target has ended."""
        if node_id and node_id != self.target.node_id:
            self.target = Target(node_id, self.target.version)
            if self._route is not None:
                self._route = self._router.move(self._route, node_id)

    def finish(self) -> None:
        """Record the end of the request at this replica, once."""
        if self._route is not None:
            self._router.finish(self._route)
            self._route = None


class Routes:
    """Choose the replica of each attempt. It belongs to the gateway's event loop.

    Until the first report, no replica is chosen: the attempt's target names the version only, and the transport takes
    any replica.

    Args:
        pin_copies: minimum number of replicas of a pinned version.
    """

    def __init__(self, *, pin_copies: int = 1, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._router, self._pin_copies, self._monotonic = Router(), pin_copies, monotonic
        self._nodes: set[str] = set()

    def report(self, report: ReplicaReport) -> None:
        """Take a replica's report, heard now."""
        self._nodes.add(report.node_id)
        self._router.report(report, self._monotonic())

    def keep(self, nodes: Collection[str]) -> None:
        """Remove all replicas but these."""
        for node_id in self._nodes.difference(nodes):
            self._router.remove(node_id)
        self._nodes.intersection_update(nodes)

    def pin(self, digests: Collection[str]) -> None:
        """Set the pinned versions, which replaces all earlier pins."""
        self._router.pin(dict.fromkeys(digests, self._pin_copies))

    def load(self, node_id: str) -> int:
        """Return the requests in flight at a replica."""
        return self._router.load(node_id)

    def begin(
        self, version: str | None, *, tokens: float = 0.0, deadline: float | None = None, avoid: Collection[str] = ()
    ) -> Attempt:
        """Choose a replica for an attempt.

        Args:
            version: content digest of the version, None for the base model.
            tokens: expected weighted tokens.
            deadline: latest time of the first token, by ``time.monotonic``.
            avoid: replicas that failed this request before.

        Raises:
            app.scheduling.routing.NoReplica: replicas are known, but none of them can serve the request.
        """
        if not self._nodes:
            return Attempt(self._router, None, version)
        now = self._monotonic()
        route = self._router.route(version, now=now, tokens=tokens, deadline=deadline, avoid=avoid)
        return Attempt(self._router, route, version)
