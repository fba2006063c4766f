"""Routes of a gateway: the routing rule on the replicas' reports, and the end of each route."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Self

from app.ray.transport import Target
from app.scheduling.replica_report import ReplicaReport
from app.scheduling.routing import Route, Router

#: Replicas whose counts are kept. Those that joined first are forgotten first.
_COUNTED = 1_000


@dataclass(slots=True)
class RouteCounts:
    """Requests of this gateway at one replica, see :class:`app.engine.status.ReplicaStatus`."""

    requests: int = 0
    retries: int = 0
    lost: int = 0


class Attempt:
    """Request on its way to one replica. End it with :meth:`finish`, whatever becomes of it.

    Attributes:
        target: address of the request.
    """

    def __init__(self, routes: "Routes", route: Route | None, version: str | None, *, is_retry: bool) -> None:
        self._routes, self._router, self._route = routes, routes.router, route
        self._is_retry, self._has_arrived = is_retry, False
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
        self._arrive()

    def lost(self) -> None:
        """Record that the replica was lost with the request, and the end of the request there."""
        self._arrive()
        self._routes.counts_of(self.target.node_id).lost += 1
        self.finish()

    def finish(self) -> None:
        """Record the end of the request at this replica, once."""
        if self._route is not None:
            self._router.finish(self._route)
            self._route = None

    def _arrive(self) -> None:
        if not self._has_arrived:
            self._has_arrived = True
            counts = self._routes.counts_of(self.target.node_id)
            counts.requests += 1
            counts.retries += self._is_retry


class Routes:
    """Choose the replica of each attempt. It belongs to the gateway's event loop.

    Until the first report, no replica is chosen: the attempt's target names the version only, and the transport takes
    any replica.

    Args:
        pin_copies: minimum number of replicas of a pinned version.
    """

    def __init__(self, *, pin_copies: int = 1, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.router, self._pin_copies, self._monotonic = Router(), pin_copies, monotonic
        self._counts: dict[str, RouteCounts] = {}
        self._nodes: set[str] = set()

    def report(self, report: ReplicaReport) -> None:
        """Take a replica's report, heard now."""
        self._nodes.add(report.node_id)
        if report.node_id not in self._counts:
            self._counts[report.node_id] = RouteCounts()
            if len(self._counts) > _COUNTED:
                del self._counts[next(iter(self._counts))]
        self.router.report(report, self._monotonic())

    def keep(self, nodes: Collection[str]) -> None:
        """Remove all replicas but these."""
        for node_id in self._nodes.difference(nodes):
            self.router.remove(node_id)
        self._nodes.intersection_update(nodes)

    def counts_of(self, node_id: str | None) -> RouteCounts:
        """Return the counts of a replica. They outlive its absence. Those of an unknown one are not kept."""
        return self._counts.get(node_id or "") or RouteCounts()

    def pin(self, digests: Collection[str]) -> None:
        """Set the pinned versions, which replaces all earlier pins."""
        self.router.pin(dict.fromkeys(digests, self._pin_copies))

    def load(self, node_id: str) -> int:
        """Return the requests in flight at a replica."""
        return self.router.load(node_id)

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
            return Attempt(self, None, version, is_retry=bool(avoid))
        now = self._monotonic()
        route = self.router.route(version, now=now, tokens=tokens, deadline=deadline, avoid=avoid)
        return Attempt(self, route, version, is_retry=bool(avoid))
