"""Pages of the audit trail for the platform."""

import re
from datetime import datetime

from app.database import audit_rows
from app.database.session import Database
from app.domain.audit import AuditFilter, NamedRow
from app.domain.clock import Clock, utc_now
from app.domain.errors import InvalidRequest
from app.domain.pages import Page
from app.services.common.validation import DEFAULT_LIMIT, checked_limit, checked_time, page_of, read_cursor

_ID = re.compile("[1-9][0-9]{0,9}", re.ASCII)
#: Longest text of a filter.
_LONGEST = 200


class AuditLogService:
    """Reads the audit trail of all tenants.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock

    async def list(self, only: AuditFilter, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None) -> Page[NamedRow]:
        """List rows, the newest first.

        Raises:
            InvalidRequest
        """
        checked_limit(limit)
        _check(only, self._clock())
        position = read_cursor(cursor, _ID)
        below = None if position is None else int(position)
        async with self._database.read() as connection:
            rows = await audit_rows.list_rows(connection, only, below=below, limit=limit + 1)
        return page_of(rows, limit, lambda named: named.row.id)


def _check(only: AuditFilter, now: datetime) -> None:
    texts = {"tenant": only.tenant, "actor": only.actor, "action": only.action, "subject": only.subject}
    for name, text in texts.items():
        # PostgreSQL refuses NUL and lone surrogates in text.
        if text is not None and (len(text) > _LONGEST or not text.isprintable()):
            allowed = f"up to {_LONGEST} printable characters"
            raise InvalidRequest(f"{name} is {text[:80]!r}; it must be {allowed}.", param=name)
    checked_time("from", only.start, now)
    checked_time("to", only.end, now)
