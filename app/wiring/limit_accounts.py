"""Wiring of the limit service and of the accounts that it counts in."""

from app.database.session import Database
from app.services.limits.accounts import Accounts
from app.services.limits.memory import MemoryAccounts
from app.services.limits.prices import PriceService
from app.services.limits.service import LimitService
from app.services.limits.shared import SharedAccounts
from app.services.prompts.tokens import PromptTokens
from app.settings import Settings
from app.wiring.engine_metrics import Metrics


def limit_service(
    settings: Settings, database: Database, tokens: PromptTokens, node_id: str, metrics: Metrics
) -> LimitService:
    """Build the limit service with its accounts and prices.

    Raises:
        ValueError: as for :func:`accounts_of`.
    """
    accounts = accounts_of(settings, database, node_id)
    metrics.watch_limits(lambda: accounts.health)
    return LimitService(tokens.most, accounts, PriceService(database))


def accounts_of(settings: Settings, database: Database, node_id: str) -> Accounts:
    """Build the accounts that the settings select.

    Raises:
        ValueError: accounts in the database were selected, but it is not PostgreSQL.
    """
    if settings.limit_accounts == "database" and not database.is_postgresql:
        raise ValueError("TENORA_LIMIT_ACCOUNTS is database, which needs PostgreSQL. Set auto or memory for SQLite.")
    if settings.limit_accounts == "memory" or not database.is_postgresql:
        return MemoryAccounts(database)
    return SharedAccounts(database, node_id, admit=settings.limits_unavailable == "admit")
