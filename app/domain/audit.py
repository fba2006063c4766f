"""The audit trail as plain data, and the arithmetic that makes a change of it visible.

Each row's seal covers the row and the seal before it. It is an HMAC under a key of the server's, so whoever has only
the database can make none.
"""

import hmac
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row of the trail; ``id`` grows with the order of insertion, not of commits."""

    id: int
    at: datetime
    actor: str
    action: str
    tenant: str | None
    subject: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Seal:
    """The seal of one row.

    Attributes:
        mac: 64 hex digits.
    """

    row_id: int
    mac: str


#: Before the first row.
GENESIS = Seal(0, "0" * 64)


def sealed(key: bytes, previous: Seal, row: AuditRow) -> Seal:
    """The seal of a row that comes behind another one's."""
    fields = [row.id, row.at.isoformat(), row.actor, row.action, row.tenant, row.subject, row.before, row.after]
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return Seal(row.id, hmac.new(key, f"{previous.mac}\n{text}".encode(), sha256).hexdigest())


def anchored(key: bytes, last: Seal) -> Seal:
    """Says that everything up to a sealed row was removed by whoever has the key."""
    return Seal(last.row_id, hmac.new(key, f"anchor\n{last.row_id}\n{last.mac}".encode(), sha256).hexdigest())


def problems(keys: Collection[bytes], previous: Seal, rows: Iterable[AuditRow], seals: Iterable[Seal]) -> list[str]:
    """What does not fit between rows and the seals that they should have, all of them behind ``previous``.

    Args:
        keys: a seal under any of them is one.
    """
    found, rows_by_id, seals_by_id = list[str](), {row.id: row for row in rows}, {one.row_id: one for one in seals}
    for row_id in sorted(rows_by_id.keys() | seals_by_id.keys()):
        row, kept = rows_by_id.get(row_id), seals_by_id.get(row_id)
        if kept is None:
            found.append(f"row {row_id} was put in later, or its seal is gone")
            continue
        if row is None:
            found.append(f"row {row_id} is gone")
        elif not any(hmac.compare_digest(sealed(key, previous, row).mac, kept.mac) for key in keys):
            found.append(f"row {row_id} was changed, or its seal")
        # What follows was sealed behind this one, whatever happened to it since.
        previous = kept
    return found
