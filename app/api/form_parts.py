"""Multipart parser (RFC 7578) that passes parts on as they arrive, for bodies that are too large for memory."""

from collections.abc import Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header


class MalformedForm(Exception):
    """The body is not a valid form."""


class FormParts:
    """Base class: a subclass gets the name of each part, then its bytes.

    Attributes:
        ended: True once the closing boundary was read.

    Raises:
        MalformedForm: the boundary is too long.
    """

    def __init__(self, boundary: bytes) -> None:
        self.ended = False
        self._header, self._value, self._disposition = bytearray(), bytearray(), b""
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part_begin,
                    "on_header_field": _gather(self._header),
                    "on_header_value": _gather(self._value),
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self.part_ended,
                    "on_end": self._on_end,
                },
            )
        except FormParserError:
            raise MalformedForm from None

    def parse(self, chunk: bytes) -> None:
        """Parse one chunk of the body.

        Raises:
            MalformedForm
            Exception: any error of the subclass.
        """
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise MalformedForm from None

    def part_began(self, name: str, filename: str) -> None:
        """Begin a part; a name that is missing is empty."""
        raise NotImplementedError

    def part_data(self, data: memoryview) -> None:
        """Add bytes of the part; they are valid during the call only."""
        raise NotImplementedError

    def part_ended(self) -> None:
        """End the part."""
        raise NotImplementedError

    def _on_part_begin(self) -> None:
        self._disposition = b""

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self.part_began(*(options.get(key, b"").decode("utf-8", "replace") for key in (b"name", b"filename")))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.part_data(memoryview(data)[start:end])

    def _on_end(self) -> None:
        self.ended = True


def boundary_of(content_type: str) -> bytes:
    """Return the boundary of a form; empty if the body is no form."""
    kind, options = parse_options_header(content_type)
    return options.get(b"boundary", b"") if kind == b"multipart/form-data" else b""


def _gather(buffer: bytearray) -> Callable[[bytes, int, int], None]:
    def gather(data: bytes, start: int, end: int) -> None:
        buffer.extend(data[start:end])

    return gather
