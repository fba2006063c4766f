"""PEFT's regular expressions over module names, run within a limit of CPU time because users write them.

PEFT matches a string in ``target_modules`` or ``exclude_modules`` against the whole name. It matches each key of
``rank_pattern`` and ``alpha_pattern`` against a suffix after a dot. One expression can run for hours. So they are
compiled and run once, in the validator's child process, and the engine gets plain names.
"""

import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: Characters of a listed name, and of most patterns.
PLAIN = re.compile(r"[A-Za-z0-9_.]{1,128}", re.ASCII)


class TooSlow(Exception):
    """The expressions exceeded their CPU time."""


class InvalidPattern(Exception):
    """A pattern that Python cannot compile. PEFT could not load it either."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)


class Pattern:
    """One regular expression, compiled on first use, so that parsing a config runs nothing.

    Args:
        text: expression as its author wrote it.
        whole: True to match a whole name, as ``target_modules`` does; False to match a suffix after a dot.
    """

    __slots__ = ("_compiled", "_plain", "_whole", "text")

    def __init__(self, text: str, *, whole: bool) -> None:
        self.text, self._whole = text, whole
        self._plain = not whole and PLAIN.fullmatch(text) is not None
        self._compiled: re.Pattern[str] | None = None

    def matches(self, name: str) -> bool:
        """Return whether PEFT would apply the pattern to this module.

        Raises:
            InvalidPattern: the expression does not compile.
        """
        if self._plain and not _ends_alike(name, self.text):
            return False
        if self._compiled is None:
            self._compiled = self._compile()
        return (self._compiled.fullmatch if self._whole else self._compiled.match)(name) is not None

    def _compile(self) -> re.Pattern[str]:
        with warnings.catch_warnings():
            # Ignore warnings about syntax that a later Python may read differently.
            warnings.simplefilter("ignore")
            try:
                # Suffix patterns use the expression of PEFT's get_pattern_key and of vLLM's PEFTHelper.
                return re.compile(self.text if self._whole else rf"(.*\.)?({self.text})$")
            except (re.error, RecursionError, OverflowError):
                raise InvalidPattern(self.text) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and (self.text, self._whole) == (other.text, other._whole)

    def __hash__(self) -> int:
        return hash((self.text, self._whole))

    def __repr__(self) -> str:
        return f"Pattern({self.text!r}, whole={self._whole})"


def _ends_alike(name: str, end: str) -> bool:
    """Return whether a suffix of this length is the whole name or follows a dot.

    This cheap test rules out most names before the expression runs.
    """
    before = len(name) - len(end) - 1
    return before == -1 or (before >= 0 and name[before] == ".")


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Limit the CPU time of a block with an interval timer (SIGPROF). Main thread only.

    This works because Python's regular expressions check for signals while they backtrack. A running interval timer is
    restored afterwards.

    Args:
        seconds: CPU time of this process in the block, in seconds.

    Raises:
        TooSlow: the block exceeded its CPU time.
        RuntimeError: the caller is not on the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("Untrusted regular expressions must run on the main thread.")
    handler = signal.signal(signal.SIGPROF, _stop)
    left, interval = signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, left, interval)
        signal.signal(signal.SIGPROF, handler)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise TooSlow
