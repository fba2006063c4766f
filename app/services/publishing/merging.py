"""Merging: combine versions of one tenant into a new one, and publish it like an upload."""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME, DiskCache
from adapters.identity import ModelName
from adapters.manifest import Manifest, parse_manifest
from adapters.stores.files import disk_errors, file_digest
from app.domain.adapters import ResolvedVersion
from app.domain.errors import Busy, MergeRejected
from app.merging import RESULT_FOLDER
from app.merging.child import ChildLimits, merge_in_child
from app.merging.recipe import MAX_SEED, RANDOM_METHODS, Recipe, Source, check_sources, read_recipe
from app.served_base import ServedBase
from app.services.access.tenants import TenantService
from app.services.catalog.adapters import AdapterService
from app.services.catalog.options import PublishOptions
from app.services.common.in_flight import InFlightLookups
from app.services.publishing.publishing import Published, PublishingService
from app.settings import Settings
from app.support.spool import Spool, SpooledFile, Upload


class MergingService:
    """Use case of merging. Merges run one at a time, because they compete with the engine for CPU cores.

    Args:
        in_flight: in-flight look-ups, see :mod:`app.services.common.in_flight`.
    """

    def __init__(
        self,
        tenants: TenantService,
        adapters: AdapterService,
        publishing: PublishingService,
        cache: DiskCache,
        spool: Spool,
        in_flight: InFlightLookups,
        base: ServedBase,
        settings: Settings,
    ) -> None:
        self._tenants, self._adapters, self._publishing = tenants, adapters, publishing
        self._cache, self._spool, self._in_flight, self._base = cache, spool, in_flight, base
        self._limits, self._max_lora_rank = settings.limits, settings.engine.max_lora_rank
        self._running = asyncio.Lock()
        self._merging: set[str] = set()

    async def merge(
        self, tenant: str, adapter: str, raw: Mapping[str, Any], options: PublishOptions, *, actor: str
    ) -> Published:
        """Merge versions of the tenant and publish the result as the adapter's next version.

        Args:
            raw: the recipe, see :func:`app.merging.recipe.read_recipe`.
            options: publish options, as for an upload; the source is filled in here.

        Raises:
            MergeRejected: with every reason.
            MergeFailed: the merging process failed or was stopped by its limits.
            Busy: too many merges, or another merge of this tenant is running.
            NotFound, AdapterNotReady, AdapterQuarantined, AdapterRetired, WrongBase: a source cannot be used.
            BlobNotFound, DigestMismatch: the bytes of a source are missing or damaged.
            Also every error of :meth:`PublishingService.publish`.
        """
        recipe = _seeded(read_recipe(raw))
        await self._publishing.check_target(tenant, adapter)
        digests = await self._check(tenant, recipe)
        async with self._permit(tenant), self._spool.folder(tenant) as folder:
            upload, source = await self._run(tenant, recipe, digests, folder)
            return await self._publishing.publish(tenant, adapter, upload, replace(options, source=source), actor=actor)

    async def _check(self, tenant: str, recipe: Recipe) -> list[str]:
        """Check that the sources can be merged. Return their content digests.

        Raises:
            MergeRejected: with every reason.
        """
        owner = await self._tenants.get(tenant)
        manifests, digests = [], []
        for source in recipe.sources:
            await self._resolve(owner.id, source)
            version = await self._adapters.get_version(tenant, source.adapter, source.number)
            manifests.append(_manifest(version.manifest))
            digests.append(version.uploaded.digest)
        if reasons := check_sources(recipe, manifests, self._base.geometry, self._max_lora_rank):
            raise MergeRejected(tuple(reasons))
        return digests

    async def _run(
        self, tenant: str, recipe: Recipe, digests: Sequence[str], folder: Path
    ) -> tuple[Upload, dict[str, Any]]:
        """Run the merge. Return the result's files and its provenance."""
        limits = ChildLimits(self._limits.merge_seconds, self._limits.merge_bytes, self._limits.weights_bytes)
        async with AsyncExitStack() as leases:
            owner = await self._tenants.get(tenant)
            leased = [await self._lease(owner.id, source, leases) for source in recipe.sources]
            libraries = await merge_in_child(self._job(recipe, leased, folder), limits)
        upload = await asyncio.to_thread(_spooled, folder / RESULT_FOLDER)
        provenance = recipe.provenance(digests) | {"libraries": asdict(libraries)}
        return upload, {"kind": "merge", "recipe": provenance}

    def _job(self, recipe: Recipe, sources: Sequence[Path], folder: Path) -> dict[str, Any]:
        return {
            "base": str(self._base.path),
            "base_name": self._base.name,
            "sources": [str(path.resolve()) for path in sources],
            "versions": [source.version for source in recipe.sources],
            "arguments": recipe.arguments(),
            "seed": recipe.seed,
            "folder": str(folder.resolve()),
        }

    async def _lease(self, tenant_id: int, source: Source, leases: AsyncExitStack) -> Path:
        """Lease the version's folder on this disk, in its normal form. A deletion waits for the lease."""
        with self._in_flight.lookup() as lookup:
            version = await self._resolve(tenant_id, source)
            lookup.resolved(version.key.version_id)
            lease = await leases.enter_async_context(await self._cache.lease(version.key))
        return lease.path

    async def _resolve(self, tenant_id: int, source: Source) -> ResolvedVersion:
        return await self._adapters.resolve(tenant_id, ModelName(source.adapter, alias=None, number=source.number))

    @asynccontextmanager
    async def _permit(self, tenant: str) -> AsyncGenerator[None]:
        if tenant in self._merging:
            raise Busy("Another merge of this tenant is running. Try again when it has ended.", retry_after=30)
        if len(self._merging) >= self._limits.merges:
            raise Busy("Too many merges are running. Try again later.", retry_after=60)
        self._merging.add(tenant)
        try:
            async with self._running:
                yield
        finally:
            self._merging.discard(tenant)


def _seeded(recipe: Recipe) -> Recipe:
    """Add a random seed if the method needs one and the caller chose none."""
    if recipe.method not in RANDOM_METHODS or recipe.seed is not None:
        return recipe
    return replace(recipe, seed=secrets.randbelow(MAX_SEED + 1))


def _manifest(stored: Mapping[str, Any]) -> Manifest:
    return parse_manifest(json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode())


def _spooled(folder: Path) -> Upload:
    """Hash the merged files. Blocks."""
    with disk_errors("keep the merged adapter"):
        config, weights = (
            SpooledFile(path, file_digest(path), path.stat().st_size)
            for path in (folder / CONFIG_NAME, folder / WEIGHTS_NAME)
        )
    return Upload(config=config, weights=weights)
