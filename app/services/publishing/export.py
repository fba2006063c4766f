"""Export: hand out the uploaded files of a version from this node's disk cache."""

from dataclasses import dataclass
from pathlib import Path

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME, DiskCache, Lease
from app.domain.adapters import VersionState
from app.domain.errors import NotFound
from app.services.catalog.adapters import AdapterService
from app.services.common.in_flight import InFlightLookups


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file of a version, kept on disk until its lease is released.

    Attributes:
        path: the file on this node's disk.
        name: its file name, as PEFT writes it.
        digest: SHA-256 (hex) of its bytes.
        size: size in bytes.
        lease: the disk cache's lease on the version.
    """

    path: Path
    name: str
    digest: str
    size: int
    lease: Lease


class ExportService:
    """Use case of exporting files. ``tenant`` and ``adapter`` are slugs.

    Args:
        in_flight: in-flight look-ups; a deletion waits for an export that is about to read the version's files.
    """

    def __init__(self, adapters: AdapterService, cache: DiskCache, in_flight: InFlightLookups) -> None:
        self._adapters, self._cache, self._in_flight = adapters, cache, in_flight

    async def open(self, tenant: str, adapter: str, number: int, name: str) -> ExportedFile:
        """Lease one file of a version that is neither deleted nor rejected. The caller releases the lease.

        Raises:
            NotFound, RegistryUnavailable
            BlobNotFound, DigestMismatch, StoreUnavailable, DiskFull
        """
        with self._in_flight.lookup() as lookup:
            version = await self._adapters.get_version(tenant, adapter, number)
            key = version.uploaded
            files = {
                CONFIG_NAME: (key.config_digest, key.config_bytes),
                WEIGHTS_NAME: (key.weights_digest, key.weights_bytes),
            }
            if name not in files:
                message = f"A version has no file {name[:80]!r}. Its files are {' and '.join(files)}."
                raise NotFound(message, param="name")
            if version.state is VersionState.REJECTED:
                raise NotFound("The version was rejected, so it has no files.", param="name")
            lookup.resolved(key.version_id)
            lease = await self._cache.lease(key)
        digest, size = files[name]
        return ExportedFile(lease.path / name, name, digest, size, lease)
