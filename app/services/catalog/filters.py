"""Query filters of listings: ``?label=team=x&label=tier=gold&state=ready&base=llama-3-8b``."""

from collections.abc import Sequence

from app.domain.adapters import VersionState
from app.domain.errors import InvalidRequest
from app.domain.filters import VersionFilter
from app.services.catalog.labels import label_filters

#: States to filter by. Deleted versions are never listed.
STATES = tuple(state.value for state in VersionState if state is not VersionState.DELETED)

_MAX_BASE = 200


def version_filter(labels: Sequence[str] = (), *, state: str | None = None, base: str | None = None) -> VersionFilter:
    """Parse the query's values.

    Args:
        labels: ``NAME=VALUE`` texts; a version must have all of them.
        base: name of a base model, or its digest with or without ``sha256:``.

    Raises:
        InvalidRequest
    """
    if state is not None and state not in STATES:
        raise InvalidRequest(f"state is {state[:80]!r}, but must be one of {', '.join(STATES)}.", param="state")
    if base is not None and not (0 < len(base) <= _MAX_BASE and base.isprintable()):
        message = f"base is {base[:80]!r}, but must have 1 to {_MAX_BASE} printable characters."
        raise InvalidRequest(message, param="base")
    return VersionFilter(
        labels=label_filters(labels),
        state=None if state is None else VersionState(state),
        base=None if base is None else base.removeprefix("sha256:"),
    )
