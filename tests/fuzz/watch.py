"""Bounds for every input: time, memory, and the places where files may be written."""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

#: CPU time of one input. Wall-clock time would include other processes of this machine.
MAX_SECONDS = 1.0
_MAX_WALL_SECONDS = 60.0

MAX_BYTES = 64 * 2**20

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGING = frozenset(
    {
        *("os.rename", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.remove", "os.truncate", "os.chmod"),
        *("os.chown", "os.utime", "os.mkfifo", "os.mknod", "os.setxattr", "os.removexattr", "shutil.move"),
    }
)
_FORBIDDEN = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "socket.bind"}
)


class Violation(BaseException):
    """An input broke a bound. It is not an Exception, so that no reader can catch it."""


class _Guard:
    """Audit hook of this process.

    Hooks cannot be removed, so it is installed once and switched.
    """

    folder: str | None = None
    installed = False

    @classmethod
    def hook(cls, event: str, arguments: tuple[object, ...]) -> None:
        if cls.folder is None:
            return
        if event == "open":
            path, mode, flags = arguments
            if _is_writing(mode, flags) and isinstance(path, str | bytes):
                cls.check(path, event)
        elif event in _CHANGING:
            for path in arguments[:2]:
                if isinstance(path, str | bytes):
                    cls.check(path, event)
        elif event in _FORBIDDEN:
            raise Violation(f"{event} {arguments!r:.200}")

    @classmethod
    def check(cls, path: str | bytes, event: str) -> None:
        if os.path.dirname(os.path.abspath(os.fsdecode(path))) != cls.folder:  # noqa: PTH100, PTH120 - fast
            raise Violation(f"{event} outside of the folder: {path!r}")


def _is_writing(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return not mode.startswith("r") or "+" in mode
    return isinstance(flags, int) and bool(flags & _WRITING)


@contextmanager
def writes_only_in(folder: Path) -> Iterator[None]:
    """Allow file changes directly in this folder only, and no new processes."""
    if not _Guard.installed:
        sys.addaudithook(_Guard.hook)
        _Guard.installed = True
    _Guard.folder = str(folder)
    try:
        yield
    finally:
        _Guard.folder = None


def _too_slow(number: int, frame: FrameType | None) -> None:
    clock = f"{MAX_SECONDS:g} s of CPU time" if number == signal.SIGPROF else f"{_MAX_WALL_SECONDS:g} s"
    raise Violation(f"no end after {clock}, in {frame.f_code.co_filename}:{frame.f_lineno}" if frame else "no end")


@contextmanager
def within_time() -> Iterator[None]:
    """Interrupt work that exceeds the time limit, even in an endless loop."""
    before = [signal.signal(number, _too_slow) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, _MAX_WALL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


@contextmanager
def within_memory(most: int = MAX_BYTES) -> Iterator[None]:
    """Limit the growth of this process's address space; beyond the limit it raises a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_bytes() + most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def address_bytes() -> int:
    """Return the address space of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def reset_peak() -> int:
    """Reset the peak of this process's resident memory; return the current size in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    """Return the peak resident memory of this process since the reset, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024
