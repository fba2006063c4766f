"""Routes of a gateway: the routing rule on the replicas' reports, and the end of each route."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Self

from app.ray.transport import FrameStream, Target
from app.scheduling.replica_report import ReplicaReport
from app.scheduling.routing import NoReplica, Route, Router

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
        on_lost: called with each replica that was lost.

    Attributes:
        ungreeted: requests on their way that no replica has greeted. Without a replica, Ray would keep them in a queue.
    """

    def __init__(
        self,
        *,
        pin_copies: int = 1,
        on_lost: Callable[[str], None] = lambda _node: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.router, self._pin_copies, self._monotonic = Router(), pin_copies, monotonic
        self._on_lost = on_lost
        self._counts: dict[str, RouteCounts] = {}
        self._nodes: set[str] = set()
        self.ungreeted: set[FrameStream] = set()

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

    def lose(self, node_id: str | None) -> None:
        """Remove a replica that broke a request, until its next report. None: a replica that was not chosen here."""
        if node_id in self._nodes:
            self._nodes.discard(node_id)
            self.router.remove(node_id)
            self._on_lost(node_id)

    def call_back(self) -> None:
        """Cancel the requests that no replica has greeted. Each fails as if its replica was lost."""
        for stream in tuple(self.ungreeted):
            stream.cancel()

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
            avoid: replicas that failed this request before. They are chosen if no other replica is ready.

        Raises:
            app.scheduling.routing.NoReplica: replicas are known, but none of them can serve the request.
        """
        if not self._nodes:
            return Attempt(self, None, version, is_retry=bool(avoid))
        now = self._monotonic()
        try:
            route = self.router.route(version, now=now, tokens=tokens, deadline=deadline, avoid=avoid)
        except NoReplica:
            if not avoid:
                raise
            route = self.router.route(version, now=now, tokens=tokens, deadline=deadline)
        return Attempt(self, route, version, is_retry=bool(avoid))
