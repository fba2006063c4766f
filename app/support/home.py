"""HOME directory with keys and adapters: accessible to its owner only, and locked by one server at a time.

A deletion is verified for one HOME: its disk cache, and the engine of the server that uses it. A second server on the
same HOME would hold the adapter without being checked. Both would also write the same journal of usage records.
"""

import fcntl
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

_OWNER_ONLY = 0o700
_FILE = "lock"
_MAX_HOLDER_BYTES = 200


def secure_home(home: Path) -> None:
    """Create HOME if needed, and deny access to other users of this machine. Blocks.

    If HOME belongs to another user, such as a mounted volume, its mode cannot be changed; that is logged.

    Raises:
        OSError: HOME cannot be created.
    """
    home.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
    mode = stat.S_IMODE(home.stat().st_mode)
    if mode == _OWNER_ONLY:
        return
    try:
        home.chmod(_OWNER_ONLY)
    except PermissionError:
        logger.warning("HOME %s belongs to another user and has mode %o. Run `chmod 700` as that user.", home, mode)


class HomeInUse(OSError):
    """Another server holds the lock."""


@contextmanager
def exclusive(home: Path) -> Iterator[None]:
    """Create HOME if needed and hold its lock (``flock``). The kernel releases it however the process ends.

    Child processes do not inherit the lock.

    Raises:
        HomeInUse: another process holds the lock; the message names it.
        OSError: HOME cannot be created or written, or its filesystem has no locks.
    """
    secure_home(home)
    with os.fdopen(os.open(home / _FILE, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read(_MAX_HOLDER_BYTES).decode("utf-8", errors="replace").strip() or "another process"
            raise HomeInUse(
                f"{home} is in use by {holder}. Stop that server, or set TENORA_HOME to another folder."
            ) from None
        except OSError as error:
            raise OSError(f"{home / _FILE} cannot be locked ({error.strerror}). Put HOME on a local disk.") from error
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
        file.flush()
        yield
