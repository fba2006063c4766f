"""Where limits are counted."""

from app.database.session import Database
from app.services.limits.accounts import Accounts
from app.services.limits.memory import MemoryAccounts
from app.services.limits.shared import SharedAccounts
from app.settings import Settings


def accounts_of(settings: Settings, database: Database, node_id: str) -> Accounts:
    """The accounts that the settings choose.

    Raises:
        ValueError: they are to be shared on a database that cannot.
    """
    if settings.limit_accounts == "database" and not database.is_postgresql:
        raise ValueError("TENORA_LIMIT_ACCOUNTS: found database, allowed auto or memory with SQLite")
    if settings.limit_accounts == "memory" or not database.is_postgresql:
        return MemoryAccounts(database)
    return SharedAccounts(database, node_id)
