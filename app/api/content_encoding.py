"""Compressed request bodies: gzip and deflate, decompressed as a stream and capped."""

import zlib

from app.domain.errors import InvalidRequest, TooLarge, UnsupportedEncoding

NAME = "content-encoding"

#: Content-Encoding -> zlib's ``wbits``, for a zlib or a gzip header.
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_ALLOWED = (*_WINDOWS, "identity")


class Decompressor:
    """Streaming decompressor of one body.

    Args:
        encoding: value of Content-Encoding without ``identity``.
        cap: maximum size of the decompressed body in bytes.

    Raises:
        UnsupportedEncoding: the encoding is unknown, or several are combined.
    """

    def __init__(self, encoding: str, cap: int) -> None:
        if encoding not in _WINDOWS:
            raise UnsupportedEncoding(
                f"{NAME} {encoding[:40]!r} is not supported. Use one of {', '.join(_ALLOWED)}.",
                param=NAME,
            )
        self._encoding, self._cap, self._size = encoding, cap, 0
        self._zlib = zlib.decompressobj(_WINDOWS[encoding])

    def feed(self, data: bytes, *, last: bool) -> bytes:
        """Decompress the next bytes of the body.

        Raises:
            TooLarge: the decompressed body exceeds its cap.
            InvalidRequest: the bytes are not of that encoding, end too early, or continue after the stream's end.
        """
        try:
            # Ask for one byte more than the cap leaves room for, to detect that the body exceeds it.
            plain = self._zlib.decompress(data, self._cap - self._size + 1)
        except zlib.error:
            raise InvalidRequest(
                f"The body is not valid {self._encoding} data. Compress it again, or send it without {NAME}.",
                param=NAME,
            ) from None
        self._size += len(plain)
        if self._size > self._cap:
            raise TooLarge(f"The decompressed body is larger than the limit of {self._cap} bytes.", param="body")
        if self._zlib.unused_data:
            raise InvalidRequest(
                f"The body continues after the end of its {self._encoding} data. Send one compressed stream.",
                param=NAME,
            )
        if last and not self._zlib.eof:
            raise InvalidRequest(f"The {self._encoding} data of the body is incomplete. Send it whole.", param=NAME)
        return plain


def encoding_of(header: bytes) -> str | None:
    """Return the encodings in a header without ``identity``; None if none is left."""
    names = [name.strip().lower() for name in header.decode("latin-1").split(",")]
    return ", ".join(name for name in names if name not in ("", "identity")) or None
