"""Smoke tests: a version that passed the gate answers a few prompts on the engine before it is served.

Meanwhile its state is ``validating``. It ends as ``ready``, with its alias moved, or as ``rejected`` with the reason.
If the server dies in between, the row stays ``validating``, and a later :meth:`SmokeTestService.resume` retries.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import AdapterRejected, BlobNotFound, Reason
from adapters.identity import DEFAULT_ALIAS
from app.database import adapters, audit, versions
from app.database.deletions import insert_deletion
from app.database.session import Database
from app.database.tenants import find_tenant
from app.database.version_references import state_of
from app.domain.adapters import Adapter, Version, VersionState
from app.domain.clock import Clock, utc_now
from app.domain.deletions import DeletedVersion
from app.domain.errors import AdapterLoadFailed
from app.engine.port import Residency, SmokeResult
from app.services.common.in_flight import InFlightLookups

logger = logging.getLogger(__name__)

#: Age at which an unfinished test counts as abandoned, longer than a test takes. Running a test twice is harmless.
_ABANDONED = timedelta(minutes=5)
_WEIGHT = 100


class SmokeTestService:
    """Runs smoke tests on this server's engine.

    Args:
        in_flight: in-flight look-ups of this process.
        rejected: called after a rejection, so that the version's bytes are removed soon.
    """

    def __init__(
        self,
        database: Database,
        engine: Residency,
        in_flight: InFlightLookups,
        rejected: Callable[[], None],
        *,
        clock: Clock = utc_now,
    ) -> None:
        self._database, self._engine, self._clock = database, engine, clock
        self._in_flight, self._rejected = in_flight, rejected
        self._running: dict[int, asyncio.Task[Version]] = {}

    def begin(self, tenant: str, version: Version) -> "asyncio.Task[Version]":
        """Start the smoke test of a ``validating`` version, or join the running one (single-flight).

        The task continues without a waiter. Its result is the version after the test.

        Raises (the task):
            AdapterRejected: the version failed and was rejected.
            EngineUnavailable, RegistryUnavailable
            adapters.errors.StorageError: the version's bytes could not be read.
        """
        version_id = version.key.version_id
        if version_id not in self._running:
            task = self._running[version_id] = asyncio.create_task(self._try(tenant, version))
            task.add_done_callback(lambda done: self._ended(version_id, done))
        return self._running[version_id]

    async def resume(self) -> None:
        """Retry tests that another server, or an earlier run of this one, left unfinished.

        Raises:
            RegistryUnavailable
        """
        async with self._database.read() as connection:
            unsettled = await versions.unsettled_versions(connection, before=self._clock() - _ABANDONED)
        await asyncio.gather(*(self.begin(tenant, version) for tenant, version in unsettled), return_exceptions=True)

    async def close(self) -> None:
        """Cancel the running tests. ``resume`` retries them."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, version_id: int, task: "asyncio.Task[Version]") -> None:
        del self._running[version_id]
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, AdapterRejected):
            logger.warning("The smoke test of version %d did not finish: %s", version_id, error)

    async def _try(self, tenant: str, version: Version) -> Version:
        try:
            reasons = await self._smoke(version)
        except BlobNotFound:
            # A server died between the version's row and its second put: see app.services.publishing.blobs.
            reasons = (Reason("bytes_missing", "adapter_model.safetensors", "no bytes in the store", "another upload"),)
        except AdapterLoadFailed as error:
            reasons = (Reason("load_failed", "adapter_model.safetensors", error.message, "weights that it can load"),)
        if reasons:
            await self._reject(tenant, version, reasons)
            raise AdapterRejected(reasons)
        return await self._accept(tenant, version)

    async def _smoke(self, version: Version) -> tuple[Reason, ...]:
        with self._in_flight.lookup() as lookup:
            lookup.resolved(version.key.version_id)
            async with self._database.read() as connection:
                state = await state_of(connection, version.key.version_id)
            if state != VersionState.VALIDATING:
                return ()  # deleted meanwhile, so it must not be loaded
            return refusals(await self._engine.smoke(version.key), version)

    async def _accept(self, tenant: str, version: Version) -> Version:
        now, version_id = self._clock(), version.key.version_id
        async with self._database.write() as connection:
            owner = await find_tenant(connection, tenant, lock=True)
            adapter = await adapters.find_adapter(connection, owner, version.adapter) if owner else None
            if adapter and await versions.settle_version(connection, version_id, VersionState.READY):
                alias = _alias_to_move(adapter, version)
                if alias is not None:
                    await self._move(connection, adapter.id, alias, version)
                moved = {} if alias is None else {alias: version.number}
                await self._record(connection, tenant, version, "version.ready", moved)
            shown = await versions.find_version(connection, adapter.id, version.number) if adapter else None
        logger.info("Version %d is %s after %s.", version_id, shown.state if shown else "gone", self._clock() - now)
        return shown or version

    async def _move(self, connection: AsyncConnection, adapter_id: int, alias: str, version: Version) -> None:
        await adapters.set_targets(
            connection,
            adapter_id,
            alias,
            {version.key.version_id: _WEIGHT},
            at=self._clock(),
            actor=version.created_by,
            action="publish",
        )

    async def _reject(self, tenant: str, version: Version, reasons: tuple[Reason, ...]) -> None:
        message = " ".join(reason.message for reason in reasons)
        async with self._database.write() as connection:
            if not await versions.settle_version(connection, version.key.version_id, VersionState.REJECTED, message):
                return
            codes = {"reasons": [reason.code for reason in reasons]}
            await self._record(connection, tenant, version, "version.rejected", codes)
            name = f"{version.adapter}@{version.number}"
            gone = [DeletedVersion.of(version.key, version.uploaded, name)]
            # The row stays, with the reason. The bytes are removed by a deletion.
            await insert_deletion(connection, gone, tenant=tenant, subject=name, at=self._clock(), by="engine")
        self._rejected()

    async def _record(
        self, connection: AsyncConnection, tenant: str, version: Version, action: str, after: Mapping[str, object]
    ) -> None:
        await audit.record(
            connection,
            at=self._clock(),
            actor=version.created_by,
            action=action,
            tenant=tenant,
            subject=f"{version.adapter}@{version.number}",
            before={"state": VersionState.VALIDATING.value},
            after=after,
        )


def _alias_to_move(adapter: Adapter, version: Version) -> str | None:
    alias: str | None = version.provenance.source.get("alias", DEFAULT_ALIAS)
    if alias is None:
        return None
    # Of two concurrent uploads the older may finish last. It must not move the alias back.
    return alias if max(adapter.aliases.get(alias, {0: 0})) < version.number else None


def refusals(result: SmokeResult, version: Version) -> tuple[Reason, ...]:
    if not result.finite:
        return (Reason("non_finite_output", "adapter_model.safetensors", "answers that are no numbers", "finite ones"),)
    if not result.has_effect and not version.provenance.source.get("allow_no_effect", False):
        allowed = "weights with an effect, or allow_no_effect"
        return (Reason("no_effect", "adapter_model.safetensors", "the base's own answers", allowed),)
    return ()
