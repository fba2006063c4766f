"""Request router of Ray Serve: it sends each request to the replica that the gateway has chosen.

Ray creates one in every process that holds a handle. It runs in a thread of Ray, so it decides nothing that needs the
gateway's state: see :mod:`app.ray.routes`.
"""

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from app.ray.preference import preferred
from app.ray.transport import Target


class NodeRouter(RequestRouter):  # type: ignore[misc]
    """Send a request to the node of its target. Without that node, the version's ranking decides."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None:
            return [candidate_replicas]
        # Wait between two rounds in which no replica takes the request.
        pending_request.routing_context.should_backoff = True
        return preferred(Target.parse(pending_request.metadata.session_id), candidate_replicas)
