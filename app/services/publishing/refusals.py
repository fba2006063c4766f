"""Refused uploads: their reasons are kept for 30 days, so that people can read them after the command that uploaded.

The first 100 reasons of an upload are kept, and the last 200 uploads of a tenant.
"""

import logging
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import AdapterRejected
from app.database import tenants, upload_refusals
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.errors import RegistryUnavailable
from app.domain.pages import Page
from app.domain.refusals import UploadRefusal
from app.services.common.lookups import tenant_or_404
from app.services.common.validation import DEFAULT_LIMIT, checked_limit, page_of, read_cursor

logger = logging.getLogger(__name__)

#: Seconds between two sweeps.
EVERY_S = 3600.0
KEPT = timedelta(days=30)
MOST_REASONS = 100
MOST_OF_TENANT = 200
_ID = re.compile("[1-9][0-9]{0,9}", re.ASCII)


class RefusalService:
    """Refused uploads of one registry. ``tenant`` and ``adapter`` are names, and ``actor`` is a key's id.

    Raises (every method but ``recording``):
        RegistryUnavailable
    """

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock

    async def record(
        self,
        connection: AsyncConnection,
        tenant: str,
        adapter: str,
        error: AdapterRejected,
        *,
        actor: str,
        digest: str | None = None,
    ) -> None:
        """Keep the reasons of a refusal. A tenant that was deleted meanwhile needs none."""
        row = await tenants.find_tenant(connection, tenant)
        if row is None:
            return
        await upload_refusals.add_refusal(
            connection,
            tenant_id=row.id,
            adapter=adapter,
            at=self._clock(),
            key_id=actor,
            digest=digest,
            reasons=error.reasons[:MOST_REASONS],
            reason_count=len(error.reasons),
            most=MOST_OF_TENANT,
        )

    @asynccontextmanager
    async def recording(self, tenant: str, adapter: str, *, actor: str) -> AsyncGenerator[None]:
        """Run the block, which receives an upload, and keep the reasons if it refuses the upload.

        Raises:
            Exception: any error of the block.
        """
        try:
            yield
        except AdapterRejected as error:
            try:
                async with self._database.write() as connection:
                    await self.record(connection, tenant, adapter, error, actor=actor)
            except RegistryUnavailable as failure:
                logger.warning("The reasons of a refused upload were not kept: %s", failure)
            raise

    async def list(
        self, tenant: str, *, adapter: str | None = None, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[UploadRefusal]:
        """List refused uploads of the last 30 days, the newest first.

        Raises:
            NotFound, InvalidRequest
        """
        checked_limit(limit)
        position = read_cursor(cursor, _ID)
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
            rows = await upload_refusals.list_refusals(
                connection,
                tenant_id=owner.id,
                adapter=adapter,
                below=None if position is None else int(position),
                since=self._clock() - KEPT,
                limit=limit + 1,
            )
        return page_of(rows, limit, lambda refusal: refusal.id)

    async def sweep(self) -> None:
        """Remove refusals that are older than 30 days."""
        async with self._database.write() as connection:
            await upload_refusals.remove_before(connection, self._clock() - KEPT)
