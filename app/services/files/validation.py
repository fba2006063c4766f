"""Checks of what a client says about a file: purpose, lifetime, quota."""

import re
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import files
from app.domain.access import Tenant
from app.domain.errors import InvalidRequest, QuotaExceeded, TooLarge
from app.domain.files import MAX_LIFETIME_S, MIN_LIFETIME_S, FileUsage, Purpose
from app.settings import BatchSettings

ANCHOR = "created_at"

_DIGITS = re.compile("[0-9]{1,10}", re.ASCII)


def checked_purpose(purpose: str) -> Purpose:
    """Check the purpose of a new file.

    Raises:
        InvalidRequest
    """
    if purpose != Purpose.BATCH:
        raise InvalidRequest(f"purpose is {purpose!r:.80}, but must be 'batch'.", param="purpose")
    return Purpose.BATCH


def checked_lifetime(anchor: str | None, seconds: int | str | None, settings: BatchSettings) -> int:
    """Check ``expires_after`` and return a file's lifetime in seconds, by default that of the settings.

    Raises:
        InvalidRequest
    """
    if anchor is None and seconds is None:
        return int(timedelta(days=settings.file_days).total_seconds())
    if anchor != ANCHOR:
        raise InvalidRequest(
            f"expires_after.anchor is {anchor!r:.80}, but must be {ANCHOR!r}.", param="expires_after.anchor"
        )
    if isinstance(seconds, str):
        seconds = int(seconds) if _DIGITS.fullmatch(seconds) else None
    if seconds is None or not MIN_LIFETIME_S <= seconds <= MAX_LIFETIME_S:
        raise InvalidRequest(
            f"expires_after.seconds must be a number from {MIN_LIFETIME_S} (one hour) to {MAX_LIFETIME_S} (30 days).",
            param="expires_after.seconds",
        )
    return seconds


def checked_size(size: int, settings: BatchSettings, *, param: str) -> None:
    """Check the announced size of a file in bytes.

    Raises:
        InvalidRequest, TooLarge
    """
    if size < 1:
        raise empty(param)
    if size > settings.file_bytes:
        raise TooLarge(f"The file has {size} bytes; the limit is {settings.file_bytes} bytes.", param=param)


def empty(param: str) -> InvalidRequest:
    return InvalidRequest("The file is empty. Send a file with at least one line.", param=param)


async def check_room(connection: AsyncConnection, tenant: Tenant, size: int, settings: BatchSettings) -> FileUsage:
    """Check that a tenant may have one more file of this size. The check is exact if the tenant's row is locked.

    Returns:
        The tenant's files and open uploads without this one.

    Raises:
        QuotaExceeded
    """
    used = await files.usage_of(connection, tenant.id)
    if used.files + 1 > settings.tenant_files:
        raise QuotaExceeded(
            f"The tenant has {used.files} files and open uploads; the limit is {settings.tenant_files}. "
            "Delete files that are no longer needed.",
            param="file",
        )
    if used.bytes + size > settings.tenant_bytes:
        raise full(used, settings)
    return used


def full(used: FileUsage, settings: BatchSettings) -> QuotaExceeded:
    """Build the refusal of a file for which a tenant's files leave no room."""
    return QuotaExceeded(
        f"The tenant's files and open uploads have {used.bytes} bytes of at most {settings.tenant_bytes}, "
        "which leaves no room for this file. Delete files that are no longer needed.",
        param="file",
    )
