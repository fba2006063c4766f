"""Decompression that tells damaged bytes from a lack of memory."""

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zlib import _Decompress

# Python hands zlib's codes on as words only; this one is Z_MEM_ERROR.
_NO_MEMORY = "Error -4"


class Damaged(Exception):
    """The bytes are not what a compressor wrote."""


def inflate(inflater: "_Decompress", source: bytes, count: int) -> bytes:
    """At most ``count`` bytes, which must be more than 0.

    Raises:
        Damaged, MemoryError
    """
    try:
        return inflater.decompress(source, count)
    except zlib.error as error:
        if str(error).startswith(_NO_MEMORY):
            raise MemoryError("no memory to decompress in") from error
        raise Damaged(str(error)) from None
