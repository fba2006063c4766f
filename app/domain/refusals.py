"""Refused uploads, as frozen data."""

from dataclasses import dataclass
from datetime import datetime

from adapters.errors import Reason


@dataclass(frozen=True, slots=True)
class UploadRefusal:
    """A refused upload.

    Attributes:
        adapter: name under which it would have been published; the adapter need not exist.
        key_id: key that sent it.
        key_name: owner or name of that key, if it is a key of the tenant.
        digest: SHA-256 (hex) over both files; None if they did not arrive whole.
        reasons: the first reasons.
        reason_count: number of all reasons.
    """

    id: int
    adapter: str
    at: datetime
    key_id: str
    key_name: str | None
    digest: str | None
    reasons: tuple[Reason, ...]
    reason_count: int
