"""Stderr sink: one process at the end of a pipe that is standard error of the server and all its children.

vLLM, torch and C libraries write to standard error past Python's logging, in each process of the engine, and so does
an interpreter that crashes. The sink reads whole lines, hides known harmless warnings, and writes the rest. With the
format ``json``, a line that is no JSON becomes the message of one that is.

:mod:`app.observability.stderr_redirect` starts it as ``python -m app.observability.stderr_sink FORMAT``. It imports the
standard library only. It ends when all writers have ended.
"""

import contextlib
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from app.observability.harmless import is_harmless

#: Line with which a writer asks for an acknowledgement on standard output, after everything before it is written.
FLUSH = b"\x1etenora-flush"

#: Longest line in bytes. A longer one is split.
_LONGEST = 2**20
_CHUNK = 2**16

_JSON_START = '{"time":"'
#: A log line that follows the unfinished line of a progress bar.
_GLUED = re.compile(r"(?<=.)(?=\{\"time\":\"\d{4}-)")
_TEXT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (?P<level>[A-Z]+) +(?P<source>[\w.]+): (?P<text>.*)", re.ASCII)
_FIELDS = re.compile(r"(?: (?:request_id|tenant|key_id|trace_id)=\S*)+\Z", re.ASCII)
#: Lines of torch's own loggers, in Python and C++: ``W1129 02:07:48.691000 9636 torch/x.py:53] text``.
_TORCH = re.compile(r"\[?(?P<level>[IWEFC])\d{4} [\d:.]+(?: \d+)* (?P<source>\S+):\d+\] (?P<text>.*)", re.ASCII)
_PYTHON = re.compile(r"\S+:\d+: (?P<source>\w*Warning): (?P<text>.*)", re.ASCII)
_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL", "C": "CRITICAL"}
_ERROR = re.compile(r"error: |Fatal Python error|Traceback \(most recent call last\)|terminate called|\w*Error: ")


@dataclass(frozen=True, slots=True)
class Line:
    """One line and its parts.

    Attributes:
        raw: the line as it was written.
        source: logger, source file or category of a warning; ``stderr`` if there is none.
        is_json: whether ``raw`` is a JSON object.
    """

    raw: str
    level: str
    source: str
    text: str
    is_json: bool = False


def read_line(raw: str) -> Line:
    """Take a line apart."""
    if raw.startswith(_JSON_START):
        try:
            record = json.loads(raw)
            return Line(raw, str(record["level"]), str(record["logger"]), str(record["message"]), is_json=True)
        except (ValueError, KeyError):
            pass
    if match := _TEXT.fullmatch(raw):
        return Line(raw, match["level"], match["source"], _FIELDS.sub("", match["text"]))
    if match := _TORCH.fullmatch(raw):
        return Line(raw, _LEVELS[match["level"]], match["source"], match["text"])
    if match := _PYTHON.fullmatch(raw):
        return Line(raw, "WARNING", match["source"], match["text"])
    return Line(raw, "ERROR" if _ERROR.match(raw) else "INFO", "stderr", raw)


class Sink:
    """Converts what was written to standard error.

    Args:
        as_json: whether every line is to be JSON.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._rest = b""
        #: Whether to drop the line of code that Python prints after a warning.
        self._drops_code = False
        #: Requests for an acknowledgement in the last input.
        self.flushes = 0

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return what is to be written."""
        self.flushes = 0
        whole = self._rest + data
        # A progress bar returns to the start of its line.
        *lines, self._rest = (whole.replace(b"\r", b"\n") if self._as_json else whole).split(b"\n")
        if len(self._rest) > _LONGEST:
            lines, self._rest = [*lines, self._rest], b""
        return b"".join(shown for line in lines for shown in self._shown(line))

    def end(self) -> bytes:
        """Return what is to be written of an unfinished last line."""
        rest, self._rest = self._rest, b""
        return b"".join(self._shown(rest)) if rest else b""

    def _shown(self, line: bytes) -> Iterator[bytes]:
        if line.endswith(FLUSH):
            self.flushes += 1
            line = line.removesuffix(FLUSH)
            if not line:
                return
        text = line.decode("utf-8", "replace")
        for part in _GLUED.split(text) if self._as_json else (text,):
            shown = self._converted(read_line(part))
            if shown is not None:
                yield shown.encode() + b"\n"

    def _converted(self, line: Line) -> str | None:
        is_code, is_hidden = line.raw.startswith("  ") and self._drops_code, is_harmless(line.source, line.text)
        self._drops_code = line.source.endswith("Warning") and (is_hidden or self._as_json)
        if is_code or is_hidden:
            return None
        if not self._as_json or line.is_json:
            return line.raw
        if not line.raw.strip():
            return None
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
        record = {"time": stamp, "level": line.level, "logger": line.source, "message": line.raw}
        return json.dumps(record, separators=(",", ":"))


def main() -> None:
    """Copy standard input to standard error until all writers have ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A service manager sends them to all processes of the server, which still has something to say.
        signal.signal(number, signal.SIG_IGN)
    sink = Sink(as_json=sys.argv[1] == "json")
    while data := os.read(0, _CHUNK):
        _write(sink.feed(data))
        if sink.flushes:
            with contextlib.suppress(OSError):  # the server has ended meanwhile
                os.write(1, b"." * sink.flushes)
    _write(sink.end())


def _write(data: bytes) -> None:
    """Write to standard error. Once its reader is gone, the data is dropped, so that no writer ever waits."""
    rest = memoryview(data)
    try:
        while rest:
            try:
                rest = rest[os.write(2, rest) :]
            except BlockingIOError:
                select.select((), (2,), ())
    except OSError:
        return


if __name__ == "__main__":
    main()
