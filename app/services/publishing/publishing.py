"""Publishing: turn a received upload into an immutable version that callers can name.

The order makes every crash harmless: bytes first, row second. Bytes without a row only take space, and a row without
bytes cannot exist. A registered version passes a smoke test on the engine before it is served, see
:mod:`app.services.publishing.smoke_tests`.
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.errors import AdapterRejected, Reason
from adapters.identity import FilePair, content_digest, parse_adapter_slug
from adapters.stores.base import BlobStore
from adapters.stores.files import disk_errors, file_digest
from adapters.strict_json import parse_object
from adapters.validation import Summary
from app.database import adapters, audit, versions
from app.database.session import Database
from app.database.versions import NewVersion
from app.domain.adapters import Adapter, Provenance, Version, VersionState
from app.domain.clock import Clock, utc_now
from app.domain.errors import AdapterQuarantined
from app.served_base import ServedBase
from app.services.catalog.descriptions import apply_description
from app.services.catalog.options import PublishOptions
from app.services.common.lookups import adapter_or_404, tenant_or_404, version_or_404
from app.services.common.quotas import check_room, enforce_quota
from app.services.prompts.chat import ChatPrompts
from app.services.publishing.blobs import BlobService
from app.services.publishing.refusals import RefusalService
from app.services.publishing.smoke_tests import SmokeTestService
from app.services.publishing.validator import Validator
from app.services.rollout.alias_lookups import check_alias_room, point_alias, ready_versions
from app.settings import Settings
from app.support.spool import SpooledFile, Upload

logger = logging.getLogger(__name__)

_MAX_PEFT_VERSION = 40
_WHOLE = 100


@dataclass(frozen=True, slots=True)
class Published:
    """A version. ``created`` is False if its bytes were a version already."""

    version: Version
    created: bool


@dataclass(frozen=True, slots=True)
class _Checked:
    """A validated upload.

    Attributes:
        normal: files that the engine reads: each is the uploaded one, unless that needs a normal form.
        warnings: parts of the upload that have no effect.
    """

    upload: Upload
    normal: Upload
    summary: Summary
    warnings: tuple[Reason, ...]

    @property
    def files(self) -> tuple[SpooledFile, ...]:
        """All files to store, each digest once."""
        both = (self.upload.config, self.upload.weights, self.normal.config, self.normal.weights)
        return tuple({file.digest: file for file in reversed(both)}.values())


class PublishingService:
    """Use cases of publishing. ``tenant`` and ``adapter`` are slugs, and ``actor`` is a key's id or ``cli``.

    Args:
        blobs: service that deletes blobs and makes publishing wait for its claims.
        refusals: keeps the reasons of refused uploads.

    Attributes:
        validator: gate that uploads and preflights share.
    """

    def __init__(
        self,
        database: Database,
        store: BlobStore,
        base: ServedBase,
        settings: Settings,
        smoke_tests: SmokeTestService,
        prompts: ChatPrompts,
        blobs: BlobService,
        refusals: RefusalService,
        *,
        clock: Clock = utc_now,
    ) -> None:
        self._database, self._store, self._base = database, store, base
        self._smoke_tests, self._prompts, self._blobs, self._clock = smoke_tests, prompts, blobs, clock
        self._refusals = refusals
        self.validator = Validator(base, settings)

    async def check_target(self, tenant: str, adapter: str) -> None:
        """Check that a version could be published under these names, before an upload's bytes are read.

        Raises:
            InvalidName, NotFound, QuotaExceeded, RegistryUnavailable
        """
        parse_adapter_slug(adapter, base_model=self._base.name)
        async with self._database.read() as connection:
            await check_room(connection, await tenant_or_404(connection, tenant), adapter)

    async def publish(
        self, tenant: str, adapter: str, upload: Upload, options: PublishOptions, *, actor: str
    ) -> Published:
        """Publish an upload as the adapter's next version: validate, store, register and smoke-test it.

        Bytes that are a version already create no new one. Its alias is moved, and its labels, card, training run and
        defaults become those that the options give.

        The returned version is ready, or ``validating`` if the options say not to wait.

        Raises:
            AdapterRejected: with every reason. An upload that the gate refuses is recorded without a version. An upload
                that the engine refuses remains as a version in the state ``rejected``.
            AdapterQuarantined: these bytes are a version that failed to load.
            Conflict: these bytes are a version that cannot get the alias now; or the adapter has too many aliases.
            WrongBase: these bytes are a version that was validated against another base.
            InvalidRequest: the options' chat template does not render.
            ValidationFailed, StoreUnavailable, DiskFull
            QuotaExceeded: with every limit that is exceeded; see :mod:`app.services.common.quotas`.
            InvalidName, NotFound, RegistryUnavailable, EngineUnavailable
        """
        parse_adapter_slug(adapter, base_model=self._base.name)
        await self._prompts.check(options.defaults, owner=tenant)
        try:
            checked = await self._validate(upload)
        except AdapterRejected as error:
            await self._record_rejection(tenant, adapter, upload, error, actor)
            raise
        manifest = parse_object(await asyncio.to_thread(upload.config.path.read_bytes))
        await self._store_files(checked)
        new = self._version(checked, manifest, options, actor)
        published = await self._register(tenant, adapter, new, options.alias)
        # The second put only checks each blob, unless a deletion has removed the same bytes meanwhile.
        await self._blobs.settled([file.digest for file in checked.files])
        await self._store_files(checked)
        version, created = published.version, published.created
        if version.state is VersionState.VALIDATING:
            smoke_test = self._smoke_tests.begin(tenant, version)
            if options.wait:
                # The smoke test continues if the caller is cancelled.
                version = await asyncio.shield(smoke_test)
        return Published(version if created else await self._republish(tenant, version, options, actor), created)

    async def _validate(self, upload: Upload) -> _Checked:
        with disk_errors("check the upload"):
            folder = Path(await asyncio.to_thread(mkdtemp, prefix="normal-", dir=upload.folder))
        verdict = await self.validator.validate(upload, normal=folder)
        summary = verdict.accepted()
        written = {name: await asyncio.to_thread(_spooled, folder / name) for name in verdict.rewritten}
        normal = Upload(written.get(CONFIG_NAME, upload.config), written.get(WEIGHTS_NAME, upload.weights))
        return _Checked(upload, normal, summary, verdict.warnings)

    async def _store_files(self, checked: _Checked) -> None:
        for file in checked.files:
            await asyncio.to_thread(self._store_file, file)

    def _store_file(self, file: SpooledFile) -> None:
        if self._store.size(file.digest) not in (None, file.size):
            # Bytes of another size cannot have this digest, so the blob is corrupt.
            logger.warning("The store's blob %s is damaged and is replaced.", file.digest)
            self._store.delete(file.digest)
        (file.adopt or partial(self._store.put, file.digest, file.path))()

    def _version(self, checked: _Checked, manifest: dict[str, Any], options: PublishOptions, actor: str) -> NewVersion:
        upload, normal, summary = checked.upload, checked.normal, checked.summary
        provenance = Provenance(
            # Another server may have to finish the smoke test, so its options are stored with the version.
            source={**options.source, "alias": options.alias, "allow_no_effect": options.allow_no_effect},
            uploaded_from=options.uploaded_from,
            training_run=options.training_run,
            peft_version=_peft_version(manifest),
            alpha=summary.alpha,
            target_modules=summary.target_modules,
            parameters=summary.parameters,
            dtype=summary.dtype,
            base_name=self._base.name,
            base_digest=self._base.digest,
        )
        return NewVersion(
            config_digest=upload.config.digest,
            weights_digest=upload.weights.digest,
            config_bytes=upload.config.size,
            weights_bytes=upload.weights.size,
            rank=summary.rank,
            manifest=manifest,
            created_at=self._clock(),
            created_by=actor,
            provenance=provenance,
            labels=options.labels,
            card=options.card,
            defaults=options.defaults,
            warnings=checked.warnings,
            normal=FilePair(normal.config.digest, normal.weights.digest, normal.config.size, normal.weights.size),
        )

    async def _register(self, tenant: str, adapter: str, new: NewVersion, alias: str | None) -> Published:
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            adapter_id = await adapters.ensure_adapter(connection, owner, adapter, at=new.created_at)
            digest = new.uploaded.digest
            existing = await versions.find_version_by_digest(connection, adapter_id, digest)
            if existing is not None:
                return _existing(existing)
            await enforce_quota(connection, owner, adapter_id, size=new.stored_bytes, rank=new.rank)
            if alias is not None and await adapters.find_alias(connection, adapter_id, alias) is None:
                await check_alias_room(connection, adapter_id, adapter)
            version = await versions.insert_version(connection, adapter_id, new)
            await audit.record(
                connection,
                at=new.created_at,
                actor=new.created_by,
                action="version.publish",
                tenant=tenant,
                subject=f"{adapter}@{version.number}",
                after={"digest": digest, "rank": new.rank, "source": dict(new.provenance.source)},
            )
            return Published(version, created=True)

    async def _republish(self, tenant: str, version: Version, options: PublishOptions, actor: str) -> Version:
        """Update an existing version with this upload's alias and descriptions, in one transaction."""
        described = {"labels": options.labels, "card": options.card, "training_run": options.training_run}
        described["defaults"] = options.defaults
        changes = {name: value for name, value in described.items() if name in options.sent_fields}
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            adapter = await adapter_or_404(connection, owner, version.adapter)
            current = await version_or_404(connection, adapter, version.number)
            if options.alias is not None:
                await self._move_alias(connection, adapter, current, options.alias, actor)
            await apply_description(
                connection, adapter, current, changes, admin=options.admin, actor=actor, at=self._clock()
            )
            return await version_or_404(connection, adapter, version.number)

    async def _move_alias(
        self, connection: AsyncConnection, adapter: Adapter, version: Version, alias: str, actor: str
    ) -> None:
        if version.state is VersionState.VALIDATING and version.provenance.source.get("alias") == alias:
            return  # the smoke test moves it
        ids = await ready_versions(connection, adapter, self._base.digest, (version.number,))
        current = await adapters.find_alias(connection, adapter.id, alias)
        if current is None:
            await check_alias_room(connection, adapter.id, adapter.name)
        elif current.canary_id is None and set(current.targets) == {version.number}:
            return
        weights = {version.number: _WHOLE}
        now = self._clock()
        await point_alias(connection, adapter, alias, current, weights, ids, action="publish", actor=actor, at=now)

    async def _record_rejection(
        self, tenant: str, adapter: str, upload: Upload, error: AdapterRejected, actor: str
    ) -> None:
        digest = _digest(upload)
        async with self._database.write() as connection:
            await self._refusals.record(connection, tenant, adapter, error, actor=actor, digest=digest)
            await audit.record(
                connection,
                at=self._clock(),
                actor=actor,
                action="version.rejected",
                tenant=tenant,
                subject=adapter,
                after={"digest": digest, "reasons": [reason.code for reason in error.reasons]},
            )


def _digest(upload: Upload) -> str:
    return content_digest(upload.config.digest, upload.weights.digest)


def _spooled(path: Path) -> SpooledFile:
    """Hash a file. Blocks."""
    with disk_errors("keep the upload's normal form"):
        return SpooledFile(path, file_digest(path), path.stat().st_size)


def _existing(version: Version) -> Published:
    if version.state is VersionState.QUARANTINED:
        raise AdapterQuarantined(
            f"These bytes are the version {version.adapter}@{version.number}, which failed to load and is quarantined. "
            "Ask the platform team to restore it, or publish other bytes."
        )
    return Published(version, created=False)


def _peft_version(manifest: dict[str, Any]) -> str | None:
    version = manifest.get("peft_version")
    return version if isinstance(version, str) and version.isprintable() and len(version) <= _MAX_PEFT_VERSION else None
