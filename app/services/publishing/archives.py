"""Archive unpacking: turn an uploaded archive into the two files of an upload, in a confined child process."""

import asyncio
from pathlib import Path

from adapters.archive import CONFIG_NAME, WEIGHTS_NAME, Unpacked
from adapters.sandbox import unpack_in_child
from app.settings import LimitSettings
from app.support.spool import SpooledFile, Upload


def archive_bytes(limits: LimitSettings) -> int:
    """Return the size limit of an archive in bytes: that of its two files, because compression may save nothing."""
    return limits.config_bytes + limits.weights_bytes


async def unpack_upload(archive: Path, folder: Path, limits: LimitSettings) -> Upload:
    """Unpack a ``.tar.gz`` or ``.zip`` of a PEFT folder into ``folder``, then remove the archive.

    Raises:
        AdapterRejected: with every reason that can be determined.
        ValidationFailed: unpacking exceeded its limit of time or memory.
        DiskFull, StoreUnavailable
    """
    files = await asyncio.to_thread(
        unpack_in_child,
        archive,
        folder,
        config_bytes=limits.config_bytes,
        weights_bytes=limits.weights_bytes,
        cpu_seconds=limits.validation_seconds,
        address_bytes=limits.validation_bytes,
    )
    await asyncio.to_thread(archive.unlink)
    return Upload(config=_spooled(files[CONFIG_NAME]), weights=_spooled(files[WEIGHTS_NAME]))


def _spooled(file: Unpacked) -> SpooledFile:
    return SpooledFile(file.path, file.digest, file.size)
