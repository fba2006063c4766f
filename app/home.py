"""HOME, which holds keys, prompts' caches and adapters: only its owner may enter."""

import logging
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

_OWNER_ONLY = 0o700


def secure_home(home: Path) -> None:
    """Make HOME if it is not there, and close it to other users of this machine. Blocks.

    A folder of another user, such as a mounted volume, may not be changed; that is logged.

    Raises:
        OSError: it cannot be made.
    """
    home.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
    mode = stat.S_IMODE(home.stat().st_mode)
    if mode == _OWNER_ONLY:
        return
    try:
        home.chmod(_OWNER_ONLY)
    except PermissionError:
        logger.warning("HOME %s has mode %o and belongs to another user. Run chmod 700 on it as that user.", home, mode)
