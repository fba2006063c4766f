"""Imports: fetch a version from the Hugging Face Hub or from a bucket, and publish it like an upload."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.errors import AdapterRejected, Reason
from adapters.fair_semaphore import FairSemaphore, QueueFull
from app.domain.errors import Busy, SourceUnavailable
from app.importing.bucket import Buckets
from app.importing.hub import Hub
from app.importing.source import Absent, BucketSource, HubSource, read_source, refused
from app.services.catalog.options import PublishOptions
from app.services.publishing.publishing import Published, PublishingService
from app.settings import ImportSettings, Settings
from app.support.spool import Spool, SpooledFile, SpoolWriter, Upload

_PICKLE = "adapter_model.bin"


class ImportService:
    """Use case of importing. ``tenant`` and ``adapter`` are slugs, and ``actor`` is a key's id."""

    def __init__(self, publishing: PublishingService, spool: Spool, hub: Hub, buckets: Buckets, settings: Settings):
        self._publishing, self._spool = publishing, spool
        self._hub, self._buckets = hub, buckets
        self._settings, limits = settings.imports, settings.limits
        self._caps = {CONFIG_NAME: limits.config_bytes, WEIGHTS_NAME: limits.weights_bytes}
        self._patience_s = limits.upload_idle_seconds
        self._prefixes = _prefixes(settings.imports)
        self._semaphore = FairSemaphore(settings.imports.at_once)

    async def run(self, tenant: str, adapter: str, source: str, options: PublishOptions, *, actor: str) -> Published:
        """Fetch the two files and publish them as the adapter's next version.

        Args:
            source: name of the source, see :mod:`app.importing.source`.
            options: publish options, as for an upload; the source is filled in here.

        Raises:
            InvalidRequest: the source is malformed, not allowed here, or does not exist.
            AdapterRejected: the weights exist only as a pickle.
            TooLarge: a file exceeds its size limit.
            SourceUnavailable: the source did not answer in time.
            Busy: too many imports or uploads at the same time.
            Also every error of :meth:`PublishingService.publish`.
        """
        parsed = read_source(source)
        self._check_allowed(parsed)
        await self._publishing.check_target(tenant, adapter)
        async with self._place(tenant), self._spool.folder(tenant) as folder:
            upload = await self._fetch(parsed, folder)
            completed = replace(options, source=parsed.provenance())
            return await self._publishing.publish(tenant, adapter, upload, completed, actor=actor)

    def _check_allowed(self, source: HubSource | BucketSource) -> None:
        if isinstance(source, BucketSource):
            if not any(source.is_under(prefix) for prefix in self._prefixes):
                raise refused(source, "Use a prefix that TENORA_IMPORTS__S3_PREFIXES of this server allows.")
        elif not self._settings.hf:
            raise refused(source, "TENORA_IMPORTS__HF of this server is false. Upload the files instead.")
        elif self._settings.hf_owners and source.owner not in self._settings.hf_owners:
            raise refused(source, "Use an owner that TENORA_IMPORTS__HF_OWNERS of this server allows.")

    async def _fetch(self, source: HubSource | BucketSource, folder: Path) -> Upload:
        deadline = time.monotonic() + self._settings.seconds
        try:
            async with asyncio.timeout(self._settings.seconds):
                files = {name: await self._fetch_or_explain(source, name, folder, deadline) for name in self._caps}
        except TimeoutError:
            message = f"The import took longer than {self._settings.seconds:g} s. Try again later."
            raise SourceUnavailable(message, retry_after=60) from None
        return Upload(config=files[CONFIG_NAME], weights=files[WEIGHTS_NAME])

    async def _fetch_or_explain(
        self, source: HubSource | BucketSource, name: str, folder: Path, deadline: float
    ) -> SpooledFile:
        try:
            return await self._fetch_file(source, name, folder, deadline)
        except Absent:
            if name == WEIGHTS_NAME and await self._has(source, _PICKLE):
                found, allowed = "a pickle, which runs code when read", "the safetensors format"
                raise AdapterRejected((Reason("pickle_format", _PICKLE, found, allowed),)) from None
            raise

    async def _has(self, source: HubSource | BucketSource, name: str) -> bool:
        if isinstance(source, BucketSource):
            return await asyncio.to_thread(self._buckets.has, source, name)
        return await self._hub.has(source, name)

    async def _fetch_file(
        self, source: HubSource | BucketSource, name: str, folder: Path, deadline: float
    ) -> SpooledFile:
        path, cap = folder / name, self._caps[name]
        if isinstance(source, BucketSource):
            return await asyncio.to_thread(self._buckets.fetch, source, name, path, cap, deadline)
        writer = SpoolWriter(path)
        try:
            return await self._hub.fetch(source, name, writer, cap)
        finally:
            # Closes the file. After ``finish`` it has no effect.
            await writer.abandon()

    @asynccontextmanager
    async def _place(self, tenant: str) -> AsyncGenerator[None]:
        try:
            async with self._semaphore.permit(tenant, patience_s=self._patience_s):
                yield
        except QueueFull:
            raise Busy("Too many imports are running. Try again later.", retry_after=60) from None


def _prefixes(settings: ImportSettings) -> tuple[BucketSource, ...]:
    """Parse the allowed prefixes. The settings have validated their form."""
    sources = [read_source(prefix) for prefix in settings.s3_prefixes]
    return tuple(source for source in sources if isinstance(source, BucketSource))
