"""Audit rows and the hash chain that makes tampering evident.

The seal of a row covers the row and the seal before it. It is an HMAC under a key of the server, so access to the
database alone is not enough to forge one.
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
    """One row of the audit trail; ``id`` follows the order of inserts, not of commits."""

    id: int
    at: datetime
    actor: str
    action: str
    tenant: str | None
    subject: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Filter of audit rows; None means any.

    Attributes:
        action: an action, or with a dot at its end the beginning of several, such as ``alias.``.
        start, end: half-open interval.
    """

    tenant: str | None = None
    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True, slots=True)
class NamedRow:
    """A row, with the owner or name of the key that acted, and whether it has a seal."""

    row: AuditRow
    actor_name: str | None
    sealed: bool


@dataclass(frozen=True, slots=True)
class Seal:
    """The seal of one row.

    Attributes:
        mac: HMAC, 64 hex digits.
    """

    row_id: int
    mac: str


#: Seal before the first row.
GENESIS = Seal(0, "0" * 64)


def sealed(key: bytes, previous: Seal, row: AuditRow) -> Seal:
    """Compute the seal of the row that follows ``previous``."""
    fields = [row.id, row.at.isoformat(), row.actor, row.action, row.tenant, row.subject, row.before, row.after]
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return Seal(row.id, hmac.new(key, f"{previous.mac}\n{text}".encode(), sha256).hexdigest())


def anchored(key: bytes, last: Seal) -> Seal:
    """Compute the anchor of a trimmed trail.

    It proves that a holder of the key removed every row up to ``last``.
    """
    return Seal(last.row_id, hmac.new(key, f"anchor\n{last.row_id}\n{last.mac}".encode(), sha256).hexdigest())


def problems(keys: Collection[bytes], previous: Seal, rows: Iterable[AuditRow], seals: Iterable[Seal]) -> list[str]:
    """Verify rows against their seals and describe each mismatch.

    Args:
        keys: valid HMAC keys; a seal may use any of them.
        previous: seal before the first of these rows.
    """
    mismatches = list[str]()
    rows_by_id, seals_by_id = {row.id: row for row in rows}, {seal.row_id: seal for seal in seals}
    for row_id in sorted(rows_by_id.keys() | seals_by_id.keys()):
        row, seal = rows_by_id.get(row_id), seals_by_id.get(row_id)
        if seal is None:
            mismatches.append(f"Row {row_id} was inserted later, or its seal is missing.")
            continue
        if row is None:
            mismatches.append(f"Row {row_id} is missing.")
        elif not any(hmac.compare_digest(sealed(key, previous, row).mac, seal.mac) for key in keys):
            mismatches.append(f"Row {row_id} or its seal was changed.")
        # The next seal chains to this one, even if this row was changed since.
        previous = seal
    return mismatches
