"""What listings of adapters and versions may be narrowed to, as query parameters."""

from typing import Annotated

from fastapi import Depends, Query

from app.domain.filters import VersionFilter
from app.services.catalog.filters import version_filter


async def _filter(
    label: Annotated[
        list[str], Query(default_factory=list, description="`NAME=VALUE`; may be given again, all must hold")
    ],
    state: Annotated[str | None, Query(description="state of the version, e.g. `ready`")] = None,
    base: Annotated[str | None, Query(description="name or digest of the base it was checked against")] = None,
) -> VersionFilter:
    return version_filter(label, state=state, base=base)


#: What a version must be like; of a list of adapters, one of each adapter's.
Filter = Annotated[VersionFilter, Depends(_filter)]
