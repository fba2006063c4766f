"""Decompression that distinguishes corrupt input from a lack of memory."""

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zlib import _Decompress

# Z_MEM_ERROR. Python exposes zlib's codes only in the message.
_NO_MEMORY = "Error -4"


class Damaged(Exception):
    """The input is not valid compressed data."""


def inflate(inflater: "_Decompress", source: bytes, count: int) -> bytes:
    """Decompress at most ``count`` bytes; ``count`` must be above 0.

    Raises:
        Damaged: the input is corrupt.
        MemoryError: zlib could not allocate memory.
    """
    try:
        return inflater.decompress(source, count)
    except zlib.error as error:
        if str(error).startswith(_NO_MEMORY):
            raise MemoryError("Not enough memory to decompress.") from error
        raise Damaged(str(error)) from None
