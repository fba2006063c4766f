"""Look-ups and writes that changes of aliases and of canaries share."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import InvalidName
from adapters.identity import parse_slug
from app.database import audit
from app.database.adapters import find_alias, set_targets
from app.database.aliases import count_aliases
from app.domain.adapters import Adapter, VersionState
from app.domain.aliases import Alias
from app.domain.errors import Conflict, NotFound, WrongBase
from app.services.common.lookups import version_or_404

MAX_ALIASES = 100


async def alias_or_404(connection: AsyncConnection, adapter: Adapter, name: str) -> Alias:
    """Find an adapter's alias.

    Raises:
        NotFound: no such alias, or the name is invalid.
    """
    try:
        alias = await find_alias(connection, adapter.id, parse_slug(name, field="alias"))
    except InvalidName:
        alias = None
    if alias is None:
        raise NotFound(f"There is no alias {name[:80]!r} of the adapter {adapter.name!r}.", param="alias")
    return alias


async def ready_versions(
    connection: AsyncConnection, adapter: Adapter, base_digest: str, numbers: Iterable[int]
) -> dict[int, int]:
    """Return the row ids of versions that may receive traffic: number -> id.

    Raises:
        NotFound: the adapter has no such version.
        Conflict: a version is not ready.
        WrongBase: a version was validated against another base.
    """
    ids = {}
    for number in numbers:
        version = await version_or_404(connection, adapter, number)
        name = f"{adapter.name}@{number}"
        if version.state is not VersionState.READY:
            raise Conflict(f"The version {name} is {version.state.value}, but must be ready.", param="version")
        provenance = version.provenance
        if provenance.base_digest not in (None, base_digest):
            raise WrongBase(
                f"The version {name} was validated against the base {provenance.base_name!r} "
                f"({str(provenance.base_digest)[:12]}), but this server has another base ({base_digest[:12]}). "
                "Use a version for this base.",
                param="version",
            )
        ids[number] = version.key.version_id
    return ids


def written(targets: Mapping[int, int]) -> dict[str, int]:
    """Format version numbers and weights for JSON, whose keys are strings."""
    return {str(number): weight for number, weight in targets.items()}


async def check_alias_room(connection: AsyncConnection, adapter_id: int, adapter: str) -> None:
    """Refuse a new alias if the adapter has reached its limit.

    Raises:
        Conflict
    """
    if await count_aliases(connection, adapter_id) >= MAX_ALIASES:
        raise Conflict(
            f"The adapter {adapter!r} has {MAX_ALIASES} aliases, which is the limit. Delete one first.",
            param="alias",
        )


async def point_alias(
    connection: AsyncConnection,
    adapter: Adapter,
    alias: str,
    current: Alias | None,
    weights: Mapping[int, int],
    ids: Mapping[int, int],
    *,
    action: str,
    actor: str,
    at: datetime,
) -> None:
    """Point an alias at versions and write the audit row. The caller has locked the tenant's row.

    Args:
        current: the alias before the change; None if it is new.
        weights: version number -> weight.
        ids: version number -> row id, see :func:`ready_versions`.
        action: ``move``, ``split``, ``rollback`` or ``publish``.
    """
    targets = {ids[number]: weight for number, weight in weights.items()}
    await set_targets(connection, adapter.id, alias, targets, at=at, actor=actor, action=action)
    await audit.record(
        connection,
        at=at,
        actor=actor,
        action=f"alias.{action}",
        tenant=adapter.tenant,
        subject=f"{adapter.name}:{alias}",
        before=None if current is None else {"targets": written(current.targets)},
        after={"targets": written(weights)},
    )
