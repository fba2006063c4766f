"""Aliases of adapters and their history."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Alias:
    """A movable name for one version, or for several that share its traffic.

    Attributes:
        adapter: the adapter's name.
        revision: grows with every change, also over a removal; its ETag.
        targets: version number -> weight, newest first.
        canary_id: the canary that moves it just now, if one does.
    """

    adapter: str
    name: str
    revision: int
    targets: Mapping[int, int]
    canary_id: int | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class AliasChange:
    """One row of an alias's history.

    Attributes:
        revision: the alias's since then.
        action: move, split, rollback, publish, remove, or what a canary did.
        targets: version number -> weight; None: the alias was removed.
    """

    revision: int
    at: datetime
    actor: str
    action: str
    targets: Mapping[int, int] | None
    reason: str | None
