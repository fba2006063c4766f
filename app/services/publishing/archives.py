"""An uploaded archive becomes the two files of an upload, in a process that hostile bytes can do little in."""

import asyncio
from pathlib import Path

from adapters.archive import CONFIG_NAME, WEIGHTS_NAME, Unpacked
from adapters.sandbox import unpack_in_child
from app.settings import LimitSettings
from app.support.spool import SpooledFile, Upload


def archive_bytes(limits: LimitSettings) -> int:
    """Most bytes of an archive: those of its two files, which is what is left of it if nothing shrinks."""
    return limits.config_bytes + limits.weights_bytes


async def unpack_upload(archive: Path, folder: Path, limits: LimitSettings) -> Upload:
    """Unpack a ``.tar.gz`` or a ``.zip`` of a PEFT folder into ``folder``, and remove it.

    Raises:
        AdapterRejected: with every reason that can be known.
        ValidationFailed: unpacking took too much time or memory.
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
