"""Which server this is: one process on one HOME, with an engine and a disk cache of its own."""

import contextlib
import os
import re
import socket
import uuid
from pathlib import Path

_ID = re.compile("[0-9a-f]{32}", re.ASCII)
_MAX_NAME = 100


class InvalidNodeId(ValueError):
    """``HOME/node`` holds something else than a node's id."""


def node_id(home: Path) -> str:
    """This node's id, 32 hex digits, kept in ``HOME/node`` and made the first time. Blocks.

    It names the HOME, not the process: what a deletion has to remove from this disk outlives a restart.

    Raises:
        InvalidNodeId: the file was changed by somebody.
        OSError: HOME cannot be read or written.
    """
    path = home / "node"
    if not path.exists():
        _make(path)
    found = path.read_text(encoding="ascii", errors="replace").strip()
    if not _ID.fullmatch(found):
        raise InvalidNodeId(f"{path}: found {found[:80]!r}, allowed 32 lower-case hex digits")
    return found


def node_name() -> str:
    """This machine's name, for people."""
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
        # A link appears whole and never replaces: of two starts at once the second keeps the first one's id.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(temporary)
    finally:
        temporary.unlink()
