"""Redirection of standard error of this process, and of all that it starts, into the sink.

See :mod:`app.observability.stderr_sink`.
"""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Literal

from app.observability.stderr_sink import FLUSH

_ROOT = Path(__file__).resolve().parents[2]
#: Size of the pipe in bytes, so that long lines of several processes seldom meet a full pipe and mix.
_PIPE_BYTES = 2**20
#: Longest wait for the sink at the end, in seconds.
_FLUSH_S = 2.0


@contextmanager
def redirected_stderr(form: Literal["json", "text"]) -> Iterator[None]:
    """Send standard error through a sink for the duration of the block, also what child processes write.

    Everything is written when the block ends, and when SIGTERM ends this process. The sink itself ends with the last
    child. It has a separate session, so that a signal to this process's group does not end it first.

    Args:
        form: ``json`` makes every line JSON, ``text`` leaves lines unchanged. Both hide known harmless warnings.

    Raises:
        OSError: no process can be started.
    """
    sys.stderr.flush()
    original, sink = os.dup(2), _started(form)
    handler = signal.getsignal(signal.SIGTERM)

    def end(number: int, _: FrameType | None) -> None:
        _flush(sink)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    if handler is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if handler is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, handler)
        _flush(sink)
        os.dup2(original, 2)
        os.close(original)
        _release(sink)


def _started(form: str) -> "subprocess.Popen[bytes]":
    """Start the sink and make its pipe the standard error of this process."""
    read, write = os.pipe()
    try:
        with contextlib.suppress(OSError):  # above the limit of this user
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        sink = subprocess.Popen(
            [sys.executable, "-B", "-S", "-m", "app.observability.stderr_sink", form],
            stdin=read,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            env={"PYTHONPATH": str(_ROOT)},
            start_new_session=True,
        )
        os.dup2(write, 2)
    finally:
        os.close(read)
        os.close(write)
    return sink


def _flush(sink: "subprocess.Popen[bytes]") -> None:
    """Wait until the sink has written everything so far. A sink that has died, or does not answer, is ignored."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
        os.write(2, FLUSH + b"\n")
        if sink.stdout and select.select((sink.stdout,), (), (), _FLUSH_S)[0]:
            sink.stdout.read(1)


def _release(sink: "subprocess.Popen[bytes]") -> None:
    """Forget the sink, which ends with the last process that writes to it."""
    if sink.stdout:
        sink.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        sink.wait(_FLUSH_S)
