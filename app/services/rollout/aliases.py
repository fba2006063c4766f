"""Aliases: move, split, roll back and delete them, and read their history."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.identity import DEFAULT_ALIAS, MAX_VERSION_NUMBER, parse_slug
from app.database import adapters, aliases, audit
from app.database.canaries import newest_canary
from app.database.session import Database
from app.database.versions import newest_ready
from app.domain.adapters import Adapter
from app.domain.aliases import Alias, AliasChange
from app.domain.canaries import CanaryState
from app.domain.clock import Clock, utc_now
from app.domain.errors import Conflict, InvalidRequest, NotFound
from app.domain.pages import Page
from app.services.common.lookups import adapter_or_404, tenant_or_404
from app.services.common.preconditions import Precondition
from app.services.common.validation import DEFAULT_LIMIT, checked_limit, page_of, read_cursor
from app.services.rollout.alias_lookups import alias_or_404, check_alias_room, point_alias, ready_versions, written
from app.services.rollout.canaries import CanaryReport, newest_report

MAX_WEIGHT = 10_000
MAX_TARGETS = 10

_WHOLE = 100
_NUMBER = re.compile("[1-9][0-9]{0,9}", re.ASCII)
_NAME = re.compile("[a-z0-9._-]{1,63}", re.ASCII)
_CHUNK = 50
# A rollback skips the intermediate steps of a canary.
_PASSING = "canary"


@dataclass(frozen=True, slots=True)
class AliasReport:
    """An alias, and its running canary or else its last one."""

    alias: Alias
    canary: CanaryReport | None


class AliasService:
    """Use cases of aliases. ``tenant``, ``adapter`` and ``alias`` are names, and ``actor`` is a key's id.

    Moving an alias ends the canary that runs on it. Every method can raise NotFound and RegistryUnavailable.
    """

    def __init__(self, database: Database, *, base_digest: str, clock: Clock = utc_now) -> None:
        self._database, self._base_digest, self._clock = database, base_digest, clock

    async def list(
        self, tenant: str, adapter: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[Alias]:
        """List an adapter's aliases by name.

        Raises:
            InvalidRequest
        """
        checked_limit(limit)
        after = read_cursor(cursor, _NAME) or ""
        async with self._database.read() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)
            rows = await aliases.list_aliases(connection, adapter_row.id, after=after, limit=limit + 1)
        return page_of(rows, limit, lambda alias: alias.name)

    async def get(self, tenant: str, adapter: str, alias: str) -> AliasReport:
        """Return an alias with its canary."""
        async with self._database.read() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)
            return await self._report(connection, adapter_row, alias)

    async def history(
        self, tenant: str, adapter: str, alias: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[AliasChange]:
        """List the changes of an alias, newest first. The history outlives the alias.

        Raises:
            InvalidRequest
        """
        checked_limit(limit)
        below = int(read_cursor(cursor, _NUMBER) or MAX_VERSION_NUMBER)
        async with self._database.read() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)
            # An invalid name, for example one with a NUL, must not reach the database.
            name = alias if _NAME.fullmatch(alias) else ""
            changes = await aliases.list_changes(connection, adapter_row.id, name, below=below, limit=limit + 1)
            if not changes and cursor is None:
                await alias_or_404(connection, adapter_row, alias)
        return page_of(changes, limit, lambda change: change.revision)

    async def set(
        self,
        tenant: str,
        adapter: str,
        alias: str,
        weights: Mapping[int, int],
        *,
        precondition: Precondition,
        actor: str,
    ) -> tuple[AliasReport, bool]:
        """Create or move an alias: point it at one version, or split its traffic over several by weight.

        Returns:
            The alias, and whether it is new.

        Raises:
            InvalidName, InvalidRequest, PreconditionFailed, WrongBase
            Conflict: a version is not ready, or the adapter has reached its limit of aliases.
        """
        parse_slug(alias, field="alias")
        check_weights(weights)
        async with self._database.write() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant, lock=True), adapter)
            current = await adapters.find_alias(connection, adapter_row.id, alias)
            precondition.check(None if current is None else current.revision)
            ids = await ready_versions(connection, adapter_row, self._base_digest, weights)
            if current is None:
                await check_alias_room(connection, adapter_row.id, adapter_row.name)
            if current is None or current.canary_id is not None or dict(current.targets) != dict(weights):
                action = "move" if len(weights) == 1 else "split"
                await point_alias(
                    connection, adapter_row, alias, current, weights, ids, action=action, actor=actor, at=self._clock()
                )
            return await self._report(connection, adapter_row, alias), current is None

    async def roll_back(
        self, tenant: str, adapter: str, alias: str, *, precondition: Precondition, actor: str
    ) -> AliasReport:
        """Return an alias to its previous target. During a canary that is the canary's baseline.

        A second call undoes the first.

        Raises:
            PreconditionFailed, WrongBase
            Conflict: there is no previous target, or one of its versions is no longer ready.
        """
        async with self._database.write() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant, lock=True), adapter)
            current = await alias_or_404(connection, adapter_row, alias)
            precondition.check(current.revision)
            weights = await self._before(connection, adapter_row, current)
            try:
                ids = await ready_versions(connection, adapter_row, self._base_digest, weights)
            except NotFound as error:
                raise Conflict(f"The alias cannot be rolled back. {error.message}", param="alias") from None
            await point_alias(
                connection, adapter_row, alias, current, weights, ids, action="rollback", actor=actor, at=self._clock()
            )
            return await self._report(connection, adapter_row, alias)

    async def delete(self, tenant: str, adapter: str, alias: str, *, precondition: Precondition, actor: str) -> None:
        """Delete an alias. Its history stays.

        Raises:
            PreconditionFailed
            Conflict: ``default`` cannot be deleted while a version is ready.
        """
        async with self._database.write() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant, lock=True), adapter)
            current = await alias_or_404(connection, adapter_row, alias)
            precondition.check(current.revision)
            if alias == DEFAULT_ALIAS and await newest_ready(connection, adapter_row.id) is not None:
                raise Conflict(f"The alias {alias!r} cannot be deleted while a version is ready. Move it instead.")
            now = self._clock()
            await adapters.remove_alias(connection, adapter_row.id, alias, at=now, actor=actor)
            await audit.record(
                connection,
                at=now,
                actor=actor,
                action="alias.delete",
                tenant=tenant,
                subject=f"{adapter}:{alias}",
                before={"targets": written(current.targets)},
            )

    async def _before(self, connection: AsyncConnection, adapter: Adapter, alias: Alias) -> dict[int, int]:
        """Find the target of a rollback: version number -> weight.

        Raises:
            Conflict: there is none.
        """
        canary = await newest_canary(connection, adapter.id, alias.name)
        if canary is not None and canary.state is CanaryState.RUNNING:
            return {canary.baseline: _WHOLE}
        below = alias.revision
        while True:
            changes = await aliases.list_changes(connection, adapter.id, alias.name, below=below, limit=_CHUNK)
            for change in changes:
                if change.targets is None:
                    break
                if change.action != _PASSING and not same_split(change.targets, alias.targets):
                    return dict(change.targets)
            else:
                if len(changes) == _CHUNK:
                    below = changes[-1].revision
                    continue
            raise Conflict(f"The alias {alias.name!r} has no earlier target to return to.", param="alias")

    async def _report(self, connection: AsyncConnection, adapter: Adapter, alias: str) -> AliasReport:
        current = await alias_or_404(connection, adapter, alias)
        return AliasReport(current, await newest_report(connection, adapter.id, alias, self._clock()))


def read_weights(version: int | None, weights: Mapping[str, int] | None) -> dict[int, int]:
    """Normalize the two ways to name an alias's target: version number -> weight.

    Raises:
        InvalidRequest: neither or both are given, or a key is not a version number.
    """
    if (version is None) == (weights is None):
        fields = "neither version nor weights" if version is None else "both version and weights"
        raise InvalidRequest(f"The body has {fields}. Send one of them.", param="version")
    if version is not None:
        return {version: _WHOLE}
    for number in weights or {}:
        if not _NUMBER.fullmatch(number):
            message = f"weights has the key {number[:20]!r}, but a key must be a version number."
            raise InvalidRequest(message, param="weights")
    return {int(number): weight for number, weight in (weights or {}).items()}


def check_weights(weights: Mapping[int, int]) -> None:
    """Check the number of an alias's targets and their weights.

    Raises:
        InvalidRequest
    """
    if not 1 <= len(weights) <= MAX_TARGETS:
        message = f"weights names {len(weights)} versions, but must name 1 to {MAX_TARGETS}."
        raise InvalidRequest(message, param="weights")
    for number, weight in weights.items():
        if not 1 <= weight <= MAX_WEIGHT:
            raise InvalidRequest(
                f"weights.{number} is {str(weight)[:20]}, but must be 1 to {MAX_WEIGHT}.", param="weights"
            )


def same_split(weights: Mapping[int, int], other: Mapping[int, int]) -> bool:
    """Return whether two sets of weights give every version the same share."""
    return _lowest_terms(weights) == _lowest_terms(other)


def _lowest_terms(weights: Mapping[int, int]) -> dict[int, int]:
    divisor = math.gcd(*weights.values())
    return {number: weight // divisor for number, weight in weights.items()}
