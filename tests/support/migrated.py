"""Empty SQLite registries at the newest schema: one migration in each process of the tests, and copies of its file."""

import functools
import sqlite3
import tempfile
from pathlib import Path

from app.database.migrate import upgrade


def create_registry(path: Path) -> None:
    """Create an empty registry in this file, which does not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(_migrated())


@functools.cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "registry.db"
        upgrade(f"sqlite+aiosqlite:///{path}")
        # What is in the write-ahead log comes into the file.
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return path.read_bytes()
