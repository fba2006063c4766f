"""Detach versions from aliases, canaries and pins, or refuse while any of these holds them.

An alias that loses its last target is removed. An alias that splits its traffic loses only the target.
``default`` falls back to its last target that is ready: a deletion must not make a version live that never was.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.identity import DEFAULT_ALIAS
from app.database import adapters, version_references
from app.database.aliases import last_ready_target
from app.domain.adapters import Adapter
from app.domain.errors import Conflict

_WHOLE = 100


@dataclass(frozen=True, slots=True)
class Leaving:
    """Versions of one adapter that go out of service.

    Attributes:
        adapter: the adapter in its state before the change.
        ids: map from version number to row id.
        name: ``pricing@3`` or ``pricing``, for messages.
    """

    adapter: Adapter
    ids: Mapping[int, int]
    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """Time, actor and reason of a change, for the history of the aliases."""

    at: datetime
    actor: str
    reason: str


async def check_free(connection: AsyncConnection, leaving: Leaving) -> None:
    """Refuse while anything holds the versions. The tenant's row must be locked.

    Raises:
        Conflict: the message names every reference.
    """
    references = [
        f"the alias {alias!r}" for alias, targets in leaving.adapter.aliases.items() if set(targets) & set(leaving.ids)
    ]
    canaries = await version_references.running_canaries(connection, leaving.adapter.id, leaving.ids.values())
    references += [f"the canary of the alias {alias!r}" for alias in sorted(canaries)]
    numbers = {version_id: number for number, version_id in leaving.ids.items()}
    pins = await version_references.pinned(connection, leaving.ids.values())
    references += [f"the pin of {leaving.adapter.name}@{number}" for number in sorted(numbers[pin] for pin in pins)]
    if references:
        raise Conflict(
            f"{leaving.name} is held by {', '.join(references)}. Release it first, or send force=true.", param="force"
        )


async def release(connection: AsyncConnection, leaving: Leaving, change: Change) -> dict[str, dict[str, int]]:
    """Remove the versions from aliases and pins. Their states must have changed already.

    Returns:
        The changed aliases with their new targets (number -> weight); empty targets if the alias was removed.
    """
    await version_references.remove_pins(connection, leaving.ids.values())
    adapter = leaving.adapter
    canaries = await version_references.running_canaries(connection, adapter.id, leaving.ids.values())
    ids = await version_references.version_ids(connection, adapter.id)
    changed: dict[str, dict[str, int]] = {}
    for alias, targets in adapter.aliases.items():
        if not set(targets) & set(leaving.ids) and alias not in canaries:
            continue
        left = without(targets, leaving.ids)
        if not left and alias == DEFAULT_ALIAS and (last := await last_ready_target(connection, adapter.id, alias)):
            left = {last[1]: _WHOLE}
        await _point(connection, adapter.id, alias, {ids[number]: weight for number, weight in left.items()}, change)
        changed[alias] = {str(number): weight for number, weight in left.items()}
    return changed


def without(targets: Mapping[int, int], gone: Mapping[int, int]) -> dict[int, int]:
    """Remove targets from a split (number -> weight). A single remaining target gets all traffic."""
    left = {number: weight for number, weight in targets.items() if number not in gone}
    return dict.fromkeys(left, _WHOLE) if len(left) == 1 else left


async def _point(
    connection: AsyncConnection, adapter_id: int, alias: str, targets: Mapping[int, int], change: Change
) -> None:
    how: Any = {"at": change.at, "actor": change.actor, "reason": change.reason}
    if targets:
        action = "split" if len(targets) > 1 else "move"
        await adapters.set_targets(connection, adapter_id, alias, targets, action=action, **how)
    else:
        await adapters.remove_alias(connection, adapter_id, alias, **how)
