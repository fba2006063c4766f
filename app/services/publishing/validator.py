"""Validator: the upload gate in a child process, a limited number at a time."""

import asyncio
from pathlib import Path

from adapters.sandbox import validate_in_child
from adapters.validation import Verdict
from app.served_base import ServedBase
from app.settings import Settings
from app.support.spool import Upload

#: Concurrent validators. They compete with the engine for CPU cores.
_VALIDATORS = 2


class Validator:
    """Validates uploads against this server's base and settings.

    Raises (every method):
        ValidationFailed: the child ended without a verdict.
        DiskFull, StoreUnavailable: this node's disk has no room for the normal form, or failed.
    """

    def __init__(self, base: ServedBase, settings: Settings) -> None:
        self._base, self._limits = base, settings.limits
        self._max_lora_rank, self._head = settings.engine.max_lora_rank, settings.engine.lora_head
        self._places = asyncio.Semaphore(_VALIDATORS)

    async def validate(self, upload: Upload, normal: Path) -> Verdict:
        """Validate an upload, and write its normal form into the empty folder ``normal``."""
        return await self._run(upload, normal=normal)

    async def validate_header(self, upload: Upload, whole_bytes: int) -> Verdict:
        """Validate an upload whose weights file holds only the header. No value is checked.

        Args:
            whole_bytes: size of the whole weights file.
        """
        return await self._run(upload, whole_bytes=whole_bytes)

    async def _run(self, upload: Upload, *, normal: Path | None = None, whole_bytes: int | None = None) -> Verdict:
        async with self._places:
            return await asyncio.to_thread(
                validate_in_child,
                upload.config.path,
                upload.weights.path,
                self._base.geometry,
                self._max_lora_rank,
                base_name=self._base.name,
                cpu_seconds=self._limits.validation_seconds,
                address_bytes=self._limits.validation_bytes,
                head=self._head,
                base=self._base.path,
                normal=normal,
                whole_bytes=whole_bytes,
            )
