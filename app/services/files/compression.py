"""Compressed blobs: gzip with a comment in the header, which makes equal contents different blobs. All functions block.

Two files with the same content have different blobs, because the comment is the random id of the file. So the time of
an upload does not show that another tenant has the same file, and a deletion removes bytes that nothing else needs.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from adapters.errors import DigestMismatch
from adapters.stores.files import disk_errors, file_digest, new_file

#: Level 1: prompts shrink to a third at the speed of a disk.
_LEVEL = 1
_BLOCK_BYTES = 2**20
#: Window bits of zlib: raw deflate for writing, gzip with its header for reading.
_RAW, _GZIP = -15, 31
#: RFC 1952: magic, deflate, flag for a comment, no time, fastest, unknown operating system.
_HEADER = b"\x1f\x8b\x08\x10\x00\x00\x00\x00\x04\xff"
_MASK = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Compressed:
    """A compressed content.

    Attributes:
        bytes, sha256: size and digest (hex) of the content.
        digest: digest (hex) of the blob.
    """

    bytes: int
    sha256: str
    digest: str


def compress(content: Iterable[bytes], target: Path, *, comment: str) -> Compressed:
    """Write a content as a new blob.

    Args:
        comment: ASCII text without NUL that no other blob has.

    Raises:
        DiskFull, StoreUnavailable: the file cannot be written.
    """
    plain, blob, size, checksum = hashlib.sha256(), hashlib.sha256(), 0, 0
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    with disk_errors("compress a file"), new_file(target) as file:

        def write(data: bytes) -> None:
            blob.update(data)
            file.write(data)

        write(_HEADER + comment.encode("ascii") + b"\x00")
        for block in content:
            plain.update(block)
            size, checksum = size + len(block), zlib.crc32(block, checksum)
            write(deflate.compress(block))
        write(deflate.flush() + checksum.to_bytes(4, "little") + (size & _MASK).to_bytes(4, "little"))
    return Compressed(size, plain.hexdigest(), blob.hexdigest())


def decompress(blob: Path, target: Path, *, digest: str) -> int:
    """Append a blob's content to a file and return the size of the content in bytes.

    Raises:
        DigestMismatch: the blob is damaged; nothing is written.
        DiskFull, StoreUnavailable: the files cannot be read or written.
    """
    with disk_errors("decompress a file"):
        # Verified first, so that only bytes that this server wrote are decompressed.
        if file_digest(blob) != digest:
            raise DigestMismatch(f"The blob {digest} is damaged.")
        inflate, size, pending = zlib.decompressobj(_GZIP), 0, False
        with target.open("ab") as file:
            for block in blocks(blob):
                # A block may expand a thousandfold, so it is decompressed in steps.
                while block or pending:
                    content = inflate.decompress(block, _BLOCK_BYTES)
                    size += file.write(content)
                    block, pending = inflate.unconsumed_tail, len(content) == _BLOCK_BYTES
        return size


def blocks(path: Path) -> Iterator[bytes]:
    """Read a file in blocks of a mebibyte."""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block
