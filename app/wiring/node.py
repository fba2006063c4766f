"""Node identity: a node is one process on one HOME, with its own engine and disk cache."""

import contextlib
import os
import re
import socket
import uuid
from pathlib import Path

_ID = re.compile("[0-9a-f]{32}", re.ASCII)
_MAX_NAME = 100


class InvalidNodeId(ValueError):
    """``HOME/node`` does not hold a node id."""


def node_id(home: Path) -> str:
    """Return this node's id (32 hex digits) from ``HOME/node``; generate it on first use. Blocks.

    The id names the HOME, not the process: data that a deletion must remove from this disk outlives a restart.

    Raises:
        InvalidNodeId: the file does not hold a node id.
        OSError: HOME cannot be read or written.
    """
    path = home / "node"
    if not path.exists():
        _make(path)
    identity = path.read_text(encoding="ascii", errors="replace").strip()
    if not _ID.fullmatch(identity):
        raise InvalidNodeId(f"{path} holds {identity[:80]!r}, not 32 lower-case hex digits. Restore this node's id.")
    return identity


def node_name() -> str:
    """Return this machine's name for display."""
    return "".join(c for c in socket.gethostname() if c.isprintable())[:_MAX_NAME] or "unnamed"


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity = uuid.uuid4().hex
    temporary = path.with_name(f".node-{identity}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(identity + "\n")
            file.flush()
            os.fsync(file.fileno())
        # Linking is atomic and never replaces: if two processes start at once, the second uses the first one's id.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(temporary)
    finally:
        temporary.unlink()
