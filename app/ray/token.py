"""Token with which the processes of a cluster authenticate, in ``HOME/secrets``."""

import contextlib
import os
import secrets
from pathlib import Path

_BYTES = 32


def token_path(home: Path) -> Path:
    """Return the path of the token; create the file on first use. Blocks.

    Raises:
        OSError: HOME cannot be read or written.
    """
    path = home.resolve() / "secrets" / "ray-token"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        temporary = path.with_name(f".ray-token-{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(_BYTES))
                file.flush()
                os.fsync(file.fileno())
            # Linking is atomic and never replaces, so two processes that start at once use one token.
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(temporary)
        finally:
            temporary.unlink()
    return path
