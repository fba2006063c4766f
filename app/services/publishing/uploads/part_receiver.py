"""Part receiver: spool and verify the parts of resumable uploads that are sent through this server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from app.domain.errors import InvalidRequest, TooLarge
from app.services.publishing.uploads.sessions import UploadService
from app.settings import LimitSettings
from app.support.spool import Spool, SpooledFile, SpoolWriter


class PartReceiver:
    """Receives a limited number of parts at a time. One tenant gets at most half of the places.

    Args:
        root: folder of the spool, which holds nothing but parts.
    """

    def __init__(self, uploads: UploadService, root: Path, limits: LimitSettings) -> None:
        self._uploads, self._limits = uploads, limits
        self._spool = Spool(root, places=limits.parts, patience_s=limits.upload_idle_seconds)

    def open(self) -> None:
        """Open the spool, see :meth:`Spool.open`. Blocks."""
        self._spool.open()

    def close(self) -> None:
        """Close the spool, see :meth:`Spool.close`. Blocks."""
        self._spool.close()

    async def receive(
        self,
        tenant: str,
        adapter: str,
        upload_id: str,
        file: str,
        number: int,
        stream: AsyncIterator[bytes],
        *,
        sha256: str,
    ) -> None:
        """Read a part to its end, verify it and store it. After an error, an earlier copy of the part is unchanged.

        Args:
            sha256: digest that the sender states, in hex.

        Raises:
            InvalidRequest: too few bytes, a digest that does not match, or no data for too long.
            TooLarge: more bytes than the part has.
            Busy: no place became free.
            NotFound, Conflict: see :meth:`UploadService.part_size`.
            RegistryUnavailable, StoreUnavailable, DiskFull
        """
        size = await self._uploads.part_size(tenant, adapter, upload_id, file, number)
        async with self._spool.folder(tenant) as folder:
            part = await self._read(stream, folder / "part", size)
            if part.digest != sha256:
                raise InvalidRequest(
                    f"content-digest names the sha256 {sha256}, but the body has {part.digest}. Send the part again.",
                    param="content-digest",
                )
            await self._uploads.put_part(tenant, adapter, upload_id, file, number, part)

    async def _read(self, stream: AsyncIterator[bytes], path: Path, size: int) -> SpooledFile:
        writer = SpoolWriter(path)
        idle_s = self._limits.upload_idle_seconds
        try:
            async with asyncio.timeout(idle_s) as idle:
                async for chunk in stream:
                    if writer.size + len(chunk) > size:
                        raise TooLarge(f"The body has more than the {size} bytes of this part.", param="body")
                    writer.add(memoryview(chunk))
                    if writer.due:
                        await writer.flush()
                    idle.reschedule(asyncio.get_running_loop().time() + idle_s)
            if writer.size != size:
                raise InvalidRequest(f"The body has {writer.size} bytes, but this part has {size}.", param="body")
            return await writer.finish()
        except TimeoutError:
            message = f"The body stalled: nothing arrived for {idle_s:g} s. Send the part again."
            raise InvalidRequest(message, param="body") from None
        finally:
            await writer.abandon()
