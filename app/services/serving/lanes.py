"""Lane of a tenant's batches in the engine's queue, beside the tenant's own requests."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.domain.access import Caller
from app.domain.batches import LineResult
from app.services.serving.preparation import Terms


@dataclass(frozen=True, slots=True)
class Lane:
    """Lane of one line of a batch.

    Attributes:
        version_id: version to which the line's name must resolve; None for the base model.
        weight: weight of the tenant's batches relative to the tenant's requests.
        result: builds the line's result from the route's answer and the name of the version that gave it.
    """

    version_id: int | None
    weight: float
    result: Callable[[dict[str, Any], str | None], LineResult]

    def terms(self, caller: Caller, request_id: str) -> Terms:
        """Return the terms of the line. No tenant has the lane's name, because slugs contain no slash."""
        return Terms(request_id, lane=f"{caller.tenant_slug}/batch", weight=caller.weight * self.weight)


class VersionGone(Exception):
    """The name of a line's version resolves to another version than when the batch was created."""
