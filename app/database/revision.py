"""Change detection for the registry, cheap enough for the event loop.

SQLite keeps a counter of commits by all processes in shared memory. Reading it is far cheaper than a query on a
thread; see docs/decisions/0034-look-ups-on-sqlite.md. PostgreSQL has no equivalent.
"""

import sqlite3
from pathlib import Path

from app.database.urls import parse_url

#: State of the registry; compare for equality only.
Revision = tuple[int, int]


class RegistryRevision:
    """Current revision of the registry. Construction does not connect.

    Raises:
        ValueError: the registry does not support this URL.
    """

    def __init__(self, url: str) -> None:
        parsed = parse_url(url)
        self._file = parsed.database if parsed.get_backend_name() == "sqlite" else None
        self._connection: sqlite3.Connection | None = None
        self._connections = 0

    def __call__(self) -> Revision | None:
        """Return a revision, equal to an earlier one only if nothing was committed in between.

        None if the revision is unknown.
        """
        if self._file is None:
            return None
        try:
            connection = self._connection or self._connect(self._file)
            # https://sqlite.org/pragma.html#pragma_data_version: values compare within one connection, which must not
            # commit.
            ((version,),) = connection.execute("PRAGMA data_version")
        except sqlite3.Error:
            # Locked, unreadable or missing: the next query reports the error.
            self.close()
            return None
        return self._connections, version

    def close(self) -> None:
        """Disconnect; the next call reconnects and returns a new revision."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, file: str) -> sqlite3.Connection:
        self._connections += 1
        # ``rw`` does not create the file. No timeout, because the event loop must not block.
        uri = f"{Path(file).absolute().as_uri()}?mode=rw"
        self._connection = sqlite3.connect(uri, timeout=0, isolation_level=None, check_same_thread=False, uri=True)
        return self._connection
