"""Conditions of listings: versions with given labels, in a state, checked against a base."""

from sqlalchemy import ColumnElement, exists, or_

from app.database.tables import adapters, version_labels, versions
from app.domain.adapters import VersionState
from app.domain.filters import ANY, VersionFilter


def matching(only: VersionFilter) -> list[ColumnElement[bool]]:
    """The filter as conditions on ``versions``, to be met all at once."""
    found: list[ColumnElement[bool]] = [
        exists().where(
            version_labels.c.version_id == versions.c.id,
            version_labels.c.name == name,
            version_labels.c.value == value,
        )
        for name, value in only.labels.items()
    ]
    if only.state is not None:
        found.append(versions.c.state == only.state)
    if only.base is not None:
        found.append(or_(versions.c.base_name == only.base, versions.c.base_digest == only.base))
    return found


def servable(base_digest: str, *, head: bool) -> list[ColumnElement[bool]]:
    """What a server of this base can serve, with or without adapters of the head, whatever the versions' states."""
    found: list[ColumnElement[bool]] = [or_(versions.c.base_digest.is_(None), versions.c.base_digest == base_digest)]
    return found if head else [*found, versions.c.lora_head.is_(False)]


def adapters_with(only: VersionFilter) -> list[ColumnElement[bool]]:
    """Conditions on ``adapters``: those that have a version like that; none for an empty filter."""
    if only == ANY:
        return []
    kept = versions.c.state != VersionState.DELETED
    return [exists().where(versions.c.adapter_id == adapters.c.id, kept, *matching(only))]
