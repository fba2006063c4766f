"""Lane of a tenant's batches in the engine's queue."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.access import Caller
from app.domain.batches import LineResult
from app.services.serving.preparation import Terms
from app.services.serving.targets import Target, Targets


@dataclass(frozen=True, slots=True)
class Lane:
    """Lane of one line of a batch.

    Attributes:
        model: name that replaces the one in the line; it resolves to one version only.
        version_id: version to which it must resolve; None for the base model.
        weight: weight of the tenant's batches relative to the tenant's requests.
        result: builds the line's result from the route's answer and the name of the version that gave it.
    """

    model: str
    version_id: int | None
    weight: float
    result: Callable[[dict[str, Any], str | None], LineResult]

    def terms(self, caller: Caller, request_id: str) -> Terms:
        """Return the terms of the line. No tenant has the lane's name, because slugs contain no slash."""
        return Terms(request_id, lane=f"{caller.tenant_slug}/batch", weight=caller.weight * self.weight)


class ExactName:
    """Resolver that replaces the names in bodies by one name."""

    def __init__(self, targets: Targets, name: str) -> None:
        self._targets, self._name = targets, name

    async def of_body(self, caller: Caller, body: Mapping[str, Any]) -> Target:  # noqa: ARG002 - the protocol's
        return await self._targets.named(caller, self._name)

    async def named(self, caller: Caller, name: str | None, user: str | None = None) -> Target:  # noqa: ARG002
        return await self._targets.named(caller, self._name)


class VersionGone(Exception):
    """The name of a line's version resolves to another version than when the batch was created."""
