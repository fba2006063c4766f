"""Lease on a directory of the disk cache."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType


class Lease:
    """Right to read a version's directory. The directory stays until ``release``.

    Attributes:
        path: the directory.
        fetch_s: seconds waited for the store or the first verification; 0.0 without a wait.
    """

    def __init__(self, path: Path, on_release: Callable[[], None], fetch_s: float = 0.0) -> None:
        self.path, self.fetch_s = path, fetch_s
        self._on_release: Callable[[], None] | None = on_release

    def release(self) -> None:
        """Return the lease. Idempotent. Call it on the event loop."""
        on_release, self._on_release = self._on_release, None
        if on_release:
            on_release()

    async def __aenter__(self) -> "Lease":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
