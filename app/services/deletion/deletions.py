"""Deletion requests and progress reports. The work is done in :mod:`app.services.deletion.worker`.

Once a request is answered, no name resolves to the versions and no listing shows them. Running requests on them finish
undisturbed. All further steps wait for those requests.
"""

import functools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.identity import VersionKey
from app.database import adapters, audit, deletions
from app.database.nodes import list_nodes
from app.database.session import Database
from app.database.version_references import version_ids
from app.database.versions import mark_versions_deleted
from app.domain.clock import Clock, utc_now
from app.domain.deletions import DeletedVersion, Deletion, Node, NodeView, node_views
from app.domain.errors import InvalidRequest, NotFound
from app.domain.pages import Page
from app.services.common.lookups import adapter_or_404, tenant_or_404, version_or_404
from app.services.common.validation import DEFAULT_LIMIT, checked_limit, page_of, read_cursor
from app.services.deletion.detach import Change, Leaving, check_free, release

_ID = re.compile("[0-9a-f]{32}", re.ASCII)
_CURSOR = re.compile(r"[0-9T:.+-]{19,40}/[0-9a-f]{32}", re.ASCII)

#: A deletion, and the state of every node that it concerns.
Report = tuple[Deletion, list[NodeView]]


@dataclass(frozen=True, slots=True)
class _Request:
    """One deletion request, as the audit trail records it."""

    tenant: str
    action: str
    before: Mapping[str, object]
    force: bool
    actor: str
    at: datetime


class DeletionService:
    """Deletion service. ``tenant`` and ``adapter`` are slugs; ``actor`` is a key's id or ``cli``.

    Args:
        requested: callback after each request, so that this node starts before its next poll.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(self, database: Database, requested: Callable[[], None], *, clock: Clock = utc_now) -> None:
        self._database, self._requested, self._clock = database, requested, clock

    async def delete_version(self, tenant: str, adapter: str, number: int, *, force: bool, actor: str) -> Report:
        """Delete one version.

        Raises:
            NotFound
            Conflict: an alias, a canary or a pin holds the version, and ``force`` is false.
        """
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            adapter_row = await adapter_or_404(connection, owner, adapter)
            version = await version_or_404(connection, adapter_row, number)
            leaving = Leaving(adapter_row, {number: version.key.version_id}, f"{adapter_row.name}@{number}")
            mark = functools.partial(mark_versions_deleted, connection, adapter_row.id, number)
            before = {"state": version.state.value, "digest": version.uploaded.digest, "aliases": list(version.aliases)}
            request = _Request(tenant, "version.delete", before, force, actor, self._clock())
            identity = await _delete(connection, leaving, mark, request)
        return await self._begun(identity)

    async def delete_adapter(self, tenant: str, adapter: str, *, force: bool, actor: str) -> Report:
        """Delete an adapter with all its versions. Its name becomes free.

        Raises:
            NotFound
            Conflict: aliases, canaries or pins hold its versions, and ``force`` is false.
        """
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            adapter_row = await adapter_or_404(connection, owner, adapter)
            leaving = Leaving(adapter_row, await version_ids(connection, adapter_row.id), adapter_row.name)
            mark = functools.partial(mark_versions_deleted, connection, adapter_row.id)
            aliases = {
                alias: {str(number): weight for number, weight in targets.items()}
                for alias, targets in adapter_row.aliases.items()
            }
            before = {"versions": list(adapter_row.versions), "aliases": aliases}
            request = _Request(tenant, "adapter.delete", before, force, actor, self._clock())
            identity = await _delete(connection, leaving, mark, request)
            await adapters.mark_adapter_deleted(connection, adapter_row.id, at=request.at)
        return await self._begun(identity)

    async def get(self, identity: str, *, tenant: str | None, files_only: bool = False) -> Report:
        """Return the report of one deletion.

        Args:
            tenant: required owner of the deletion; None for any.
            files_only: True to return deletions of files only.

        Raises:
            NotFound: the deletion does not exist, or the caller may not see it.
        """
        async with self._database.read() as connection:
            since = await self._since(connection, tenant)
            deletion = await deletions.find_deletion(connection, identity) if _ID.fullmatch(identity) else None
            nodes = await list_nodes(connection)
        foreign = tenant is not None and deletion is not None and (deletion.tenant != tenant or _older(deletion, since))
        if deletion is None or foreign or (files_only and deletion.file_id is None):
            raise NotFound(f"There is no deletion {identity[:80]!r}.", param="deletion")
        return deletion, node_views(deletion, nodes, self._clock())

    async def list_all(
        self, *, tenant: str | None, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[Report]:
        """List deletions of one tenant or of all tenants, the newest first.

        Raises:
            NotFound, InvalidRequest
        """
        checked_limit(limit)
        before = _read(read_cursor(cursor, _CURSOR))
        async with self._database.read() as connection:
            since = await self._since(connection, tenant)
            rows = await deletions.list_deletions(
                connection, tenant=tenant, since=since, before=before, limit=limit + 1
            )
            nodes = await list_nodes(connection)
        page = page_of(rows, limit, lambda last: f"{last.requested_at.isoformat()}/{last.id}")
        return Page(self._views(page.data, nodes), page.next_cursor)

    def _views(self, rows: Sequence[Deletion], nodes: Sequence[Node]) -> tuple[Report, ...]:
        now = self._clock()
        return tuple((deletion, node_views(deletion, nodes, now)) for deletion in rows)

    async def _since(self, connection: AsyncConnection, tenant: str | None) -> datetime | None:
        """Return when the tenant was created: another tenant may have had its slug before."""
        return None if tenant is None else (await tenant_or_404(connection, tenant)).created_at

    async def _begun(self, identity: str) -> Report:
        self._requested()
        return await self.get(identity, tenant=None)


async def _delete(
    connection: AsyncConnection,
    leaving: Leaving,
    mark: Callable[[], Awaitable[Sequence[tuple[VersionKey, VersionKey]]]],
    request: _Request,
) -> str:
    """Remove the versions from the registry, record the removal for all nodes, and return the deletion's id."""
    if not request.force:
        await check_free(connection, leaving)
    names = {version_id: f"{leaving.adapter.name}@{number}" for number, version_id in leaving.ids.items()}
    versions = [DeletedVersion.of(key, uploaded, names[key.version_id]) for key, uploaded in await mark()]
    change = Change(request.at, request.actor, f"{leaving.name} was deleted.")
    aliases = await release(connection, leaving, change)
    identity = await deletions.insert_deletion(
        connection,
        versions,
        tenant=request.tenant,
        subject=leaving.name,
        at=request.at,
        by=request.actor,
        forced=request.force,
    )
    await audit.record(
        connection,
        at=request.at,
        actor=request.actor,
        action=request.action,
        tenant=request.tenant,
        subject=leaving.name,
        before=request.before,
        after={"deletion": identity, "aliases": aliases},
    )
    return identity


def _older(deletion: Deletion, moment: datetime | None) -> bool:
    return moment is not None and deletion.requested_at < moment


def _read(cursor: str | None) -> tuple[datetime, str] | None:
    if cursor is None:
        return None
    moment, _, identity = cursor.partition("/")
    try:
        parsed = datetime.fromisoformat(moment)
        # The database stores UTC, and the conversion of a time near year 1 or 9999 can overflow.
        parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise InvalidRequest(
            f"cursor is {cursor[:80]!r}, but must be the next_cursor of the previous page.", param="cursor"
        )
    return parsed, identity
