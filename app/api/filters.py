"""Query parameters that filter lists of adapters and versions."""

from typing import Annotated

from fastapi import Depends, Query

from app.domain.filters import VersionFilter
from app.services.catalog.filters import version_filter


async def _filter(
    label: Annotated[
        list[str], Query(default_factory=list, description="`NAME=VALUE`. If given several times, all must match.")
    ],
    state: Annotated[str | None, Query(description="State of the version, e.g. `ready`")] = None,
    base: Annotated[
        str | None, Query(description="Name or digest of the base model that it was checked against")
    ] = None,
) -> VersionFilter:
    return version_filter(label, state=state, base=base)


#: Filter on versions. A list of adapters keeps each adapter that has a matching version.
Filter = Annotated[VersionFilter, Depends(_filter)]
