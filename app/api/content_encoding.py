"""Compressed request bodies: gzip and deflate, decompressed as they come and never beyond the body's cap."""

import zlib

from app.domain.errors import InvalidRequest, TooLarge, UnsupportedEncoding

NAME = "content-encoding"

#: The value of the header -> zlib's window: its own header, or gzip's.
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
ALLOWED = (*_WINDOWS, "identity")


class Decompressor:
    """Decompresses one body.

    Args:
        encoding: the header's value, without those that change nothing.
        cap: bytes that the body may have.

    Raises:
        UnsupportedEncoding: none of the encodings above, or more than one.
    """

    def __init__(self, encoding: str, cap: int) -> None:
        if encoding not in _WINDOWS:
            raise UnsupportedEncoding(
                f"{NAME}: found {encoding[:40]!r}, allowed {', '.join(ALLOWED)}; send the body without compression",
                param=NAME,
            )
        self._encoding, self._cap, self._size = encoding, cap, 0
        self._zlib = zlib.decompressobj(_WINDOWS[encoding])

    def feed(self, data: bytes, *, last: bool) -> bytes:
        """The next bytes of the body.

        Raises:
            TooLarge: the body goes beyond its cap.
            InvalidRequest: the bytes are not of that encoding, end too early, or go on behind their end.
        """
        try:
            # One byte more than there is room for tells that there are too many.
            found = self._zlib.decompress(data, self._cap - self._size + 1)
        except zlib.error:
            raise InvalidRequest(f"body: found bytes that are not {self._encoding}", param=NAME) from None
        self._size += len(found)
        if self._size > self._cap:
            raise TooLarge(f"body: found more after decompression, allowed {self._cap} bytes", param="body")
        if self._zlib.unused_data:
            raise InvalidRequest(f"body: found bytes behind the end of the {self._encoding} stream", param=NAME)
        if last and not self._zlib.eof:
            raise InvalidRequest(f"body: the {self._encoding} stream ends too early", param=NAME)
        return found


def encoding_of(header: bytes) -> str | None:
    """The encoding that a header names; None: none that changes a byte."""
    named = [one.strip().lower() for one in header.decode("latin-1").split(",")]
    return ", ".join(one for one in named if one not in ("", "identity")) or None
