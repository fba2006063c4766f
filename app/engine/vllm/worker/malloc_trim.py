"""Memory that glibc keeps of what was freed, given back to the system."""

import ctypes
import threading
import time
from collections.abc import Callable

_EVERY_S = 60.0


class Freed:
    """What this process has freed, given back now and then.

    glibc gives back only what lies at the end of an arena, and adapters are read by threads with arenas of their own:
    a worker whose adapters came and went was 36 MiB larger after an hour than after ten minutes, and used 5 of them.
    Giving back takes milliseconds, in which whoever allocates may wait.

    Args:
        give_back: by default glibc's; where the C library has none there is nothing to do.
    """

    def __init__(
        self, give_back: Callable[[], object] | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._give_back, self._monotonic = give_back or _malloc_trim(), monotonic
        self._lock, self._given_back = threading.Lock(), monotonic()

    def give_back(self) -> None:
        """Give it back, if that was not done for a minute; from any thread."""
        with self._lock:
            now = self._monotonic()
            if now - self._given_back < _EVERY_S:
                return
            self._given_back = now
        self._give_back()


def _malloc_trim() -> Callable[[], object]:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: trim(0)) if trim else (lambda: None)
