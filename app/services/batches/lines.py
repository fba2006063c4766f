"""Lines of input files: read them with their places, and parse one of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from app.domain.batches import LinePlace
from app.domain.errors import InvalidRequest, TooLarge
from app.services.bodies.parsing import parse_large_object, parse_object, shown

MOST_ID = 512

#: Lines and bytes that are read at once.
_SLAB_LINES, _SLAB_BYTES = 64, 2**20
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_WHITESPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line of a file.

    Attributes:
        content: its bytes without the line's end; None if it is longer than a line may be.
    """

    place: LinePlace
    content: bytes | None


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A parsed line: the request of a batch that ``custom_id`` identifies."""

    custom_id: str
    body: dict[str, Any]


class LineReader:
    """Reader of the lines of a file that are not empty, in slabs. Its methods block.

    Args:
        most_bytes: longest line that is kept in memory.
    """

    def __init__(self, path: Path, *, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._file: BinaryIO = path.open("rb")
        self._lines = self._read()

    def close(self) -> None:
        self._file.close()

    def slab(self) -> list[RawLine]:
        """Return the next lines; empty at the end of the file."""
        lines: list[RawLine] = []
        size = 0
        for line in self._lines:
            lines.append(line)
            size += len(line.content or b"")
            if len(lines) >= _SLAB_LINES or size >= _SLAB_BYTES:
                break
        return lines

    def _read(self) -> Iterator[RawLine]:
        offset = number = 0
        while raw := self._file.readline(self._most_bytes + 2):
            number += 1
            begin, read = offset, len(raw)
            while not raw.endswith(b"\n") and (more := self._file.readline(self._most_bytes)):
                raw, read = more, read + len(more)
            offset += read
            content = raw.rstrip(_WHITESPACE) if read == len(raw) else None
            if content is None or len(content) > self._most_bytes:
                yield RawLine(LinePlace(number, begin, read), None)
            elif content:
                yield RawLine(LinePlace(number, begin, len(content)), content)


def parse_line(content: bytes, *, endpoint: str, large: bool = False) -> BatchLine:
    """Parse a line of a batch, and check all but its body.

    Args:
        endpoint: the batch's endpoint.
        large: count the items before parsing; for more than ``SMALL_BYTES``, in a thread.

    Raises:
        InvalidRequest
    """
    if content.startswith(_UTF16):
        raise InvalidRequest("The file is UTF-16. Send JSONL in UTF-8.")
    try:
        line = parse_large_object(content) if large else parse_object(content)
    except InvalidRequest as error:
        message = error.message.replace("The body", "The line", 1)
        raise InvalidRequest(message.replace("Send JSON in UTF-8", "Send JSONL in UTF-8")) from None
    custom_id, body = line.get("custom_id"), line.get("body")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MOST_ID:
        raise _refusal("custom_id", custom_id, f"a text of 1 to {MOST_ID} characters")
    if line.get("method") != "POST":
        raise _refusal("method", line.get("method"), "'POST'")
    if line.get("url") != endpoint:
        raise _refusal("url", line.get("url"), f"{endpoint!r}, the batch's endpoint")
    if not isinstance(body, dict):
        raise _refusal("body", body, "an object, the body of the request")
    return BatchLine(custom_id, body)


def too_long(most_bytes: int) -> TooLarge:
    return TooLarge(f"The line is longer than {most_bytes} bytes, which is the limit. Shorten it.")


def _refusal(field: str, value: object, allowed: str) -> InvalidRequest:
    if value is None:
        return InvalidRequest(f"The line has no {field}; it must be {allowed}.", param=field)
    return InvalidRequest(f"{field} is {shown(value)}; it must be {allowed}.", param=field)
