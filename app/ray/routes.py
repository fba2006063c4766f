"""Routes of a gateway: the routing rule on the replicas' reports, and the end of each route."""

import time
from collections.abc import Callable, Collection
from typing import Self

from app.ray.transport import FrameStream, Target
from app.scheduling.replica_report import ReplicaReport
from app.scheduling.routing import NoReplica, Route, Router


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
        self._router, self._pin_copies, self._monotonic = Router(), pin_copies, monotonic
        self._on_lost = on_lost
        self._nodes: set[str] = set()
        self.ungreeted: set[FrameStream] = set()

    def report(self, report: ReplicaReport) -> None:
        """Take a replica's report, heard now."""
        self._nodes.add(report.node_id)
        self._router.report(report, self._monotonic())

    def keep(self, nodes: Collection[str]) -> None:
        """Remove all replicas but these."""
        for node_id in self._nodes.difference(nodes):
            self._router.remove(node_id)
        self._nodes.intersection_update(nodes)

    def lose(self, node_id: str | None) -> None:
        """Remove a replica that broke a request, until its next report. None: a replica that was not chosen here."""
        if node_id in self._nodes:
            self._nodes.discard(node_id)
            self._router.remove(node_id)
            self._on_lost(node_id)

    def call_back(self) -> None:
        """Cancel the requests that no replica has greeted. Each fails as if its replica was lost."""
        for stream in tuple(self.ungreeted):
            stream.cancel()

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
            avoid: replicas that failed this request before. They are chosen if no other replica is ready.

        Raises:
            app.scheduling.routing.NoReplica: replicas are known, but none of them can serve the request.
        """
        if not self._nodes:
            return Attempt(self._router, None, version)
        now = self._monotonic()
        try:
            route = self._router.route(version, now=now, tokens=tokens, deadline=deadline, avoid=avoid)
        except NoReplica:
            if not avoid:
                raise
            route = self._router.route(version, now=now, tokens=tokens, deadline=deadline)
        return Attempt(self._router, route, version)
