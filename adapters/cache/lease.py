"""What a caller of the disk copy holds."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType


class Lease:
    """The right to read a version's directory; it stays until ``release``.

    Attributes:
        path: the directory.
        fetch_s: seconds that its bytes were waited for: the store, or their first verification; 0.0 if there was no
            need to.
    """

    def __init__(self, path: Path, on_release: Callable[[], None], fetch_s: float = 0.0) -> None:
        self.path, self.fetch_s = path, fetch_s
        self._on_release: Callable[[], None] | None = on_release

    def release(self) -> None:
        """Give the right back; a second call does nothing. Call it on the event loop."""
        on_release, self._on_release = self._on_release, None
        if on_release:
            on_release()

    async def __aenter__(self) -> "Lease":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
