"""Call malloc_trim at most once a minute, to return freed memory to the system."""

import ctypes
import threading
import time
from collections.abc import Callable

_EVERY_S = 60.0


class MallocTrim:
    """Rate-limited malloc_trim of this process.

    glibc returns only memory at the end of an arena. Staging threads have their own arenas, so a worker would grow as
    adapters come and go. The call takes milliseconds, in which other allocations may wait.
    See docs/decisions/0023-memory-of-long-running-engine-processes.md.

    Args:
        malloc_trim: function that returns memory; by default glibc's, and a no-op with another C library.
    """

    def __init__(
        self, malloc_trim: Callable[[], object] | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._trim, self._monotonic = malloc_trim or _malloc_trim(), monotonic
        self._lock, self._trimmed_at = threading.Lock(), monotonic()

    def trim(self) -> None:
        """Return memory, unless that was done in the last minute. Thread-safe."""
        with self._lock:
            now = self._monotonic()
            if now - self._trimmed_at < _EVERY_S:
                return
            self._trimmed_at = now
        self._trim()


def _malloc_trim() -> Callable[[], object]:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: trim(0)) if trim else (lambda: None)
