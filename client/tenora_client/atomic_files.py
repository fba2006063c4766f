"""Files that appear under their name once they are complete."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yield a hidden path that becomes ``target`` once the block ends well, and is removed if not.

    Raises:
        OSError: the file cannot be renamed.
    """
    part = target.parent / f".{target.name}-{uuid.uuid4().hex}"
    try:
        yield part
        os.replace(part, target)  # noqa: PTH105 - replaces a file also on Windows
    except BaseException:
        part.unlink(missing_ok=True)
        raise
