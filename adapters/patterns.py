"""PEFT's regular expressions over module names, written by strangers: run within a limit of CPU time.

PEFT takes a text in ``target_modules`` or ``exclude_modules`` as an expression for a whole name, and each key of
``rank_pattern`` and ``alpha_pattern`` as one for a name's end after a dot. One expression can run for hours. So they
are compiled and run once, in the validator's child process, and the engine gets names.
"""

import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: What a name in a list is made of, and most patterns too.
PLAIN = re.compile(r"[A-Za-z0-9_.]{1,128}", re.ASCII)


class TooSlow(Exception):
    """The expressions took more CPU time than they may."""


class InvalidPattern(Exception):
    """A text that Python cannot compile; PEFT could not load it either."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)


class Pattern:
    """One regular expression; compiled on its first use, so that reading a config runs nothing.

    Args:
        text: as its author wrote it.
        whole: whether it must match a whole name, as ``target_modules`` does, or its end after a dot is enough.
    """

    __slots__ = ("_compiled", "_plain", "_whole", "text")

    def __init__(self, text: str, *, whole: bool) -> None:
        self.text, self._whole = text, whole
        self._plain = not whole and PLAIN.fullmatch(text) is not None
        self._compiled: re.Pattern[str] | None = None

    def matches(self, name: str) -> bool:
        """Whether PEFT would take the pattern for this module.

        Raises:
            InvalidPattern
        """
        if self._plain and not _ends_alike(name, self.text):
            return False
        if self._compiled is None:
            self._compiled = self._compile()
        return (self._compiled.fullmatch if self._whole else self._compiled.match)(name) is not None

    def _compile(self) -> re.Pattern[str]:
        with warnings.catch_warnings():
            # About spellings that a later Python may read in another way.
            warnings.simplefilter("ignore")
            try:
                # The second is that of PEFT's get_pattern_key, and of vLLM's PEFTHelper.
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
    """Whether an end of so many characters could be cut off at a dot; most of many full names are told apart by it."""
    before = len(name) - len(end) - 1
    return before == -1 or (before >= 0 and name[before] == ".")


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Interrupt the block once this process has used so many seconds of CPU time in it; for a main thread.

    Python's regular expressions look for signals as they backtrack. An interval timer that runs already is kept.

    Raises:
        TooSlow
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("regular expressions of strangers run in a process of their own")
    handler = signal.signal(signal.SIGPROF, _stop)
    left, interval = signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, left, interval)
        signal.signal(signal.SIGPROF, handler)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise TooSlow
