"""Causes for which no line of a batch runs at present, or for which the server cancels it, as sentences."""

from datetime import datetime, timedelta

from adapters.errors import DiskFull, StorageError
from app.domain.batches import Cause
from app.domain.errors import BudgetExceeded, FileLost, RegistryUnavailable

KEY_REVOKED = Cause("key_revoked", "The key that created the batch was revoked.")
TENANT_DELETED = Cause("tenant_deleted", "The tenant was deleted.")
TENANT_DISABLED = Cause("tenant_disabled", "The tenant is disabled. The batch goes on when it is enabled again.")
_STORE = Cause("store_unavailable", "The store does not answer. The batch goes on when it does.")
_DISK = Cause("disk_full", "The disk of a server is full. The batch goes on when it has room.")
_LOST = Cause("file_lost", "The store has lost bytes of the batch. It goes on when the platform team restores them.")


def cause_of(error: Exception, now: datetime) -> Cause | None:
    """Return why a batch cannot go on after an error; None for an error that passes soon."""
    match error:
        case BudgetExceeded(param=name, retry_after=seconds):
            return _budget(str(name), seconds, now)
        case FileLost():
            return _LOST
        case DiskFull():
            return _DISK
        case StorageError():
            return _STORE
        case RegistryUnavailable():
            return None
    return None


def _budget(name: str, seconds: int | None, now: datetime) -> Cause:
    if seconds is None:
        return Cause(name, f"The budget {name} is smaller than one line needs. The batch goes on when it is raised.")
    # Budgets are those of UTC days and months, so they return at a full hour.
    back = (now + timedelta(seconds=seconds) + timedelta(minutes=30)).replace(minute=0, second=0)
    return Cause(name, f"The budget {name} is used up until {back:%Y-%m-%d %H:%M} UTC, or until it is raised.")
