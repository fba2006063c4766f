"""Causes of database failures, by error code: counted, logged and kept for the readiness check."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from sqlite3 import SQLITE_BUSY, SQLITE_FULL, SQLITE_LOCKED, SQLITE_READONLY

from app.domain.errors import RegistryUnavailable

logger = logging.getLogger(__name__)

#: Seconds for which a cause counts as present after its last failure; longer than the heartbeat interval of a server.
RECENT_S = 30.0
#: Minimum seconds between two log lines about one cause.
_LOGGED_EVERY_S = 60.0
_LONGEST = 200


class Cause(StrEnum):
    """Cause of a failed statement."""

    DISK_FULL = "disk_full"
    READ_ONLY = "read_only"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    LOCKED = "locked"
    NO_ANSWER = "no_answer"


@dataclass(frozen=True, slots=True)
class _Words:
    """Texts for one cause: the state without its full stop, for logs too, and the advice for clients."""

    state: str
    advice: str


_WORDS = {
    Cause.DISK_FULL: _Words(
        "The registry's database has no room left, so nothing can be changed",
        "Ask the platform team to free disk space.",
    ),
    Cause.READ_ONLY: _Words("The registry's database is read-only, so nothing can be changed", "Try again later."),
    Cause.TOO_MANY_CONNECTIONS: _Words(
        "The registry's database has no connection left for this server", "Try again in a moment."
    ),
    Cause.LOCKED: _Words("The registry's database is locked by another process", "Try again in a moment."),
    Cause.NO_ANSWER: _Words("The registry's database does not answer", "Try again in a moment."),
}
_SQLSTATES = {"53100": Cause.DISK_FULL, "25006": Cause.READ_ONLY, "53300": Cause.TOO_MANY_CONNECTIONS}
_SQLITE_CODES = {
    SQLITE_FULL: Cause.DISK_FULL,
    SQLITE_READONLY: Cause.READ_ONLY,
    SQLITE_BUSY: Cause.LOCKED,
    SQLITE_LOCKED: Cause.LOCKED,
}
#: libpq sets no SQLSTATE on a refused connection; match PostgreSQL's messages for 53300.
_NO_CONNECTION = ("too many clients", "remaining connection slots", "too many connections")


class Troubles:
    """Failures of one database.

    Attributes:
        counts: failed statements by cause since the start of the process.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[Cause] = Counter(dict.fromkeys(Cause, 0))
        self._clock = clock
        self._failed_at: dict[Cause, float] = {}
        self._logged: dict[Cause, float] = {}

    def note(self, error: BaseException | None) -> RegistryUnavailable:
        """Count a failure and log its cause; return the error for callers.

        Args:
            error: error of the driver; None for a timeout.
        """
        cause, now = cause_of(error), self._clock()
        self.counts[cause] += 1
        self._failed_at[cause] = now
        if now - self._logged.get(cause, float("-inf")) >= _LOGGED_EVERY_S:
            self._logged[cause] = now
            logger.warning("%s: %s", _WORDS[cause].state, _first_line(error))
        return unavailable(cause)

    @property
    def changes(self) -> str | None:
        """Reason why the database recently rejected writes, as a sentence; None if there is none."""
        limit = self._clock() - RECENT_S
        for cause in (Cause.DISK_FULL, Cause.READ_ONLY):
            if self._failed_at.get(cause, float("-inf")) > limit:
                return f"{_WORDS[cause].state}."
        return None


def unavailable(cause: Cause) -> RegistryUnavailable:
    """Build the error that clients see for a cause."""
    words = _WORDS[cause]
    return RegistryUnavailable(f"{words.state}. {words.advice}", retry_after=1)


def cause_of(error: BaseException | None) -> Cause:
    """Classify a driver's error by PostgreSQL's SQLSTATE or SQLite's result code."""
    sqlstate, code = getattr(error, "sqlstate", None), getattr(error, "sqlite_errorcode", None)
    if sqlstate in _SQLSTATES:
        return _SQLSTATES[sqlstate]
    if isinstance(code, int):
        # The low byte is the primary result code.
        return _SQLITE_CODES.get(code & 0xFF, Cause.NO_ANSWER)
    if sqlstate is None and any(words in str(error) for words in _NO_CONNECTION):
        return Cause.TOO_MANY_CONNECTIONS
    return Cause.NO_ANSWER


def _first_line(error: BaseException | None) -> str:
    lines = str(error).splitlines() if error is not None else []
    return lines[0][:_LONGEST] if lines else "no answer in time"
