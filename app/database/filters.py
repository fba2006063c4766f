"""SQL conditions of listings: versions by labels, state and base; text of names; position in an order."""

from typing import Any

from sqlalchemy import ColumnElement, Select, exists, or_

from app.database.tables import adapters, version_labels, versions
from app.domain.adapters import VersionState
from app.domain.filters import ANY, VersionFilter
from app.domain.searches import Search, Sort


def matching(only: VersionFilter) -> list[ColumnElement[bool]]:
    """Translate the filter into conditions on ``versions``, joined by AND."""
    conditions: list[ColumnElement[bool]] = [
        exists().where(
            version_labels.c.version_id == versions.c.id,
            version_labels.c.name == name,
            version_labels.c.value == value,
        )
        for name, value in only.labels.items()
    ]
    if only.state is not None:
        conditions.append(versions.c.state == only.state)
    if only.base is not None:
        conditions.append(or_(versions.c.base_name == only.base, versions.c.base_digest == only.base))
    return conditions


def servable(base_digest: str, *, head: bool) -> list[ColumnElement[bool]]:
    """Conditions on versions that a server of this base can serve, regardless of their state.

    Args:
        base_digest: digest of the base.
        head: True to include adapters of the head.
    """
    same_base = or_(versions.c.base_digest.is_(None), versions.c.base_digest == base_digest)
    return [same_base] if head else [same_base, versions.c.lora_head.is_(False)]


def adapters_with(only: VersionFilter) -> list[ColumnElement[bool]]:
    """Conditions on ``adapters`` that have a matching version; empty for an empty filter."""
    if only == ANY:
        return []
    kept = versions.c.state != VersionState.DELETED
    return [exists().where(versions.c.adapter_id == adapters.c.id, kept, *matching(only))]


def named(search: Search, *columns: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """Conditions of rows with the search's text in one of the columns."""
    if search.text is None:
        return []
    # The database lowers both sides, because SQLite's lower() knows ASCII only.
    return [or_(*(column.icontains(search.text, autoescape=True) for column in columns))]


def ordered(
    statement: Select[Any], sort: Sort, *, identity: ColumnElement[int], name: ColumnElement[str], after: str | None
) -> Select[Any]:
    """Order rows whose ids grow and whose names are unique, from the row after a position on.

    Args:
        after: id or name of the last row of the previous page, by the order.
    """
    column: ColumnElement[Any] = name if sort.by_name else identity
    if after is not None:
        position = after if sort.by_name else int(after)
        statement = statement.where(column < position if sort.descending else column > position)
    return statement.order_by(column.desc() if sort.descending else column)
