"""Aliases of adapters and their history."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Alias:
    """A movable name for one version, or for several versions that split its traffic.

    Attributes:
        adapter: name of the adapter.
        revision: counter that grows with every change, also across a removal; the ETag.
        targets: version number -> weight, newest first.
        canary_id: canary that currently moves the alias; None if there is none.
    """

    adapter: str
    name: str
    revision: int
    targets: Mapping[int, int]
    canary_id: int | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class AliasChange:
    """One row of the history of an alias.

    Attributes:
        revision: revision of the alias after the change.
        action: move, split, rollback, publish, remove, or the action of a canary.
        targets: version number -> weight; None if the change removed the alias.
    """

    revision: int
    at: datetime
    actor: str
    action: str
    targets: Mapping[int, int] | None
    reason: str | None
