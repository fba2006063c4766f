"""Publishing: a received upload becomes an immutable version that callers can name.

The order makes every crash harmless: bytes first, row second. Bytes without a row only take room, and a row
without bytes cannot be.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import AdapterRejected
from adapters.identity import DEFAULT_ALIAS, content_digest, parse_adapter_slug
from adapters.sandbox import validate_in_child
from adapters.stores.base import BlobStore
from adapters.strict_json import parse_object
from adapters.validation import Summary
from app.base_model import BaseModel
from app.clock import Clock, utc_now
from app.database import adapters as stored
from app.database import audit, versions
from app.database.session import Database
from app.database.versions import NewVersion
from app.errors import AdapterQuarantined
from app.registry import Version, VersionState
from app.services.spool import Upload
from app.services.tenants import tenant_or_404
from app.settings import Settings

logger = logging.getLogger(__name__)

#: Validators that run at the same time; they compete with the engine for cores.
_VALIDATORS = 2


@dataclass(frozen=True, slots=True)
class Published:
    """A version, and whether this upload made it or its bytes were there already."""

    version: Version
    created: bool


class PublishingService:
    """The rules of publishing. ``tenant`` and ``adapter`` are slugs; ``actor`` is a key's id or ``cli``.

    Args:
        blob_lock: held while a row and its bytes must agree; shared with whoever deletes bytes.
    """

    def __init__(
        self,
        database: Database,
        store: BlobStore,
        base: BaseModel,
        settings: Settings,
        blob_lock: asyncio.Lock,
        *,
        clock: Clock = utc_now,
    ) -> None:
        self._database, self._store, self._base = database, store, base
        self._max_lora_rank, self._limits = settings.engine.max_lora_rank, settings.limits
        self._blob_lock, self._clock = blob_lock, clock
        self._validators = asyncio.Semaphore(_VALIDATORS)

    async def check_target(self, tenant: str, adapter: str) -> None:
        """Whether a version could be published under these names: to be asked before an upload's bytes are read.

        Raises:
            InvalidName, NotFound, RegistryUnavailable
        """
        parse_adapter_slug(adapter, base_model=self._base.name)
        async with self._database.read() as connection:
            await tenant_or_404(connection, tenant)

    async def publish(self, tenant: str, adapter: str, upload: Upload, *, actor: str) -> Published:
        """Check the files, store them, and make them the adapter's next version and its ``default``.

        Raises:
            AdapterRejected: with every reason; the refusal is in the audit trail, nothing else is kept.
            AdapterQuarantined: these bytes are a version that failed to load.
            ValidationFailed, StoreUnavailable, DiskFull
            InvalidName, NotFound, RegistryUnavailable
        """
        parse_adapter_slug(adapter, base_model=self._base.name)
        try:
            summary = await self._validate(upload)
        except AdapterRejected as error:
            await self._record_rejection(tenant, adapter, upload, error, actor)
            raise
        manifest = parse_object(await asyncio.to_thread(upload.config.path.read_bytes))
        await self._store_files(upload)
        async with self._blob_lock:
            published = await self._register(tenant, adapter, upload, summary, manifest, actor)
            # Costs a look each, unless a deletion took the same bytes away since they were stored.
            await self._store_files(upload)
        return published

    async def _validate(self, upload: Upload) -> Summary:
        async with self._validators:
            verdict = await asyncio.to_thread(
                validate_in_child,
                upload.config.path,
                upload.weights.path,
                self._base.geometry,
                self._max_lora_rank,
                cpu_seconds=self._limits.validation_seconds,
                address_bytes=self._limits.validation_bytes,
            )
        return verdict.accepted()

    async def _store_files(self, upload: Upload) -> None:
        for file in (upload.config, upload.weights):
            await asyncio.to_thread(self._store.put, file.digest, file.path)

    async def _register(
        self, tenant: str, adapter: str, upload: Upload, summary: Summary, manifest: dict[str, Any], actor: str
    ) -> Published:
        now = self._clock()
        new = NewVersion(
            config_digest=upload.config.digest,
            weights_digest=upload.weights.digest,
            config_bytes=upload.config.size,
            weights_bytes=upload.weights.size,
            rank=summary.rank,
            manifest=manifest,
            created_at=now,
            created_by=actor,
        )
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            adapter_id = await stored.ensure_adapter(connection, owner, adapter, at=now)
            known = await versions.find_version_by_digest(connection, adapter_id, _digest(upload))
            if known is not None:
                return _known(known)
            return await self._insert(connection, tenant, adapter_id, new)

    async def _insert(self, connection: AsyncConnection, tenant: str, adapter_id: int, new: NewVersion) -> Published:
        version = await versions.insert_version(connection, adapter_id, new)
        before = await stored.move_alias(
            connection, adapter_id, DEFAULT_ALIAS, version.key.version_id, at=new.created_at
        )
        await audit.record(
            connection,
            at=new.created_at,
            actor=new.created_by,
            action="version.publish",
            tenant=tenant,
            subject=f"{version.adapter}@{version.number}",
            before={DEFAULT_ALIAS: before},
            after={DEFAULT_ALIAS: version.number, "digest": version.key.digest, "rank": new.rank},
        )
        shown = await versions.find_version(connection, adapter_id, version.number)
        return Published(shown or version, created=True)

    async def _record_rejection(
        self, tenant: str, adapter: str, upload: Upload, error: AdapterRejected, actor: str
    ) -> None:
        async with self._database.write() as connection:
            await audit.record(
                connection,
                at=self._clock(),
                actor=actor,
                action="version.rejected",
                tenant=tenant,
                subject=adapter,
                after={"digest": _digest(upload), "reasons": [reason.code for reason in error.reasons]},
            )


def _digest(upload: Upload) -> str:
    return content_digest(upload.config.digest, upload.weights.digest)


def _known(version: Version) -> Published:
    if version.state is VersionState.QUARANTINED:
        raise AdapterQuarantined(
            f"these bytes are the version {version.adapter}@{version.number}, which failed to load"
        )
    return Published(version, created=False)
