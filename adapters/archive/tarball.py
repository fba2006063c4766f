"""Parser of ``.tar.gz``: one gzip member (RFC 1952) around a tar archive.

It reads POSIX ustar and pax headers, and GNU's plain headers.

The archive is streamed from front to back, in small pieces. Only ``path`` and ``size`` of pax headers are used. Pax
headers that would change the interpretation of the bytes are refused, and so are GNU's long names and sparse files.

https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from adapters.archive.inflating import Damaged, inflate
from adapters.archive.members import MAX_MEMBERS, MAX_RATIO, RATIO_GRACE, Broken, Member, Members
from adapters.archive.sinks import Sinks

GZIP_MAGIC = b"\x1f\x8b"

_BLOCK = 512
_READ_BYTES = 64 * 2**10
_PIECE_BYTES = 2**20
_MAX_PAX_BYTES = 64 * 2**10
# Padding after the end of an archive: tar pads to 20 blocks, other blocking factors to some hundred blocks.
_MAX_PADDING = 2**20
# Bytes that tar adds to the files: headers and padding.
_MAX_TAR_BYTES = MAX_MEMBERS * (_MAX_PAX_BYTES + 4 * _BLOCK) + _MAX_PADDING

_ZEROS = bytes(_BLOCK)
_WINDOW_BITS = 16 + zlib.MAX_WBITS  # require a gzip header

_FILE, _FOLDER, _PAX, _PAX_GLOBAL = b"0", b"5", b"x", b"g"
_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a named pipe",
}
_OCTAL = re.compile(rb" *([0-7]{1,12})[ \0]*")
_RECORD_LENGTH = re.compile(rb"([1-9][0-9]{0,5}) ")
_SIZE = re.compile(r"[0-9]{1,19}", re.ASCII)
_PLAIN_CHARSET = "ISO-IR 10646 2000 UTF-8"


class GzipStream:
    """Decompressed bytes of one gzip member. Memory stays below 4 MiB.

    Every method raises Broken if the input is not gzip, corrupt or truncated, or if it exceeds ``most`` or the
    compression ratio.

    Args:
        most: limit of decompressed bytes.
    """

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file, self._most = file, most
        self._inflater = zlib.decompressobj(_WINDOW_BITS)
        self._compressed = self._unpacked = 0

    def read(self, count: int) -> bytes:
        """Return at most ``count`` bytes; empty at the end."""
        while not self._inflater.eof:
            source = self._inflater.unconsumed_tail or self._more()
            try:
                piece = inflate(self._inflater, source, count)
            except Damaged:
                raise Broken("corrupt_archive", "damaged compressed bytes", "one whole gzip file") from None
            if piece:
                self._count(len(piece))
                return piece
        return b""

    def exactly(self, count: int) -> bytes:
        """Return exactly ``count`` bytes."""
        pieces = bytearray()
        while len(pieces) < count:
            piece = self.read(count - len(pieces))
            if not piece:
                raise Broken("truncated_archive", "an archive that breaks off", "a whole archive")
            pieces += piece
        return bytes(pieces)

    def pieces(self, count: int) -> Iterator[bytes]:
        """Yield exactly ``count`` bytes, in pieces."""
        while count:
            piece = self.read(min(count, _PIECE_BYTES))
            if not piece:
                raise Broken("truncated_archive", "an archive that breaks off", "a whole archive")
            count -= len(piece)
            yield piece

    def skip(self, count: int) -> None:
        """Skip exactly ``count`` bytes."""
        for _ in self.pieces(count):
            pass

    def end(self) -> None:
        """Check that only zeros follow, and nothing after the gzip member."""
        padding = 0
        while piece := self.read(_PIECE_BYTES):
            padding += len(piece)
            if padding > _MAX_PADDING or piece.count(0) != len(piece):
                raise Broken("trailing_data", "bytes after the end of the archive", "nothing after it")
        if self._inflater.unused_data or self._file.read(1):
            raise Broken("trailing_data", "bytes after the gzip member", "one gzip member and nothing after it")

    def _more(self) -> bytes:
        source = self._file.read(_READ_BYTES)
        if not source:
            raise Broken("truncated_archive", "compressed bytes that break off", "one whole gzip file")
        self._compressed += len(source)
        return source

    def _count(self, count: int) -> None:
        self._unpacked += count
        if self._unpacked > self._most:
            raise Broken("archive_too_large", f"more than {self._most} bytes unpacked", f"{self._most} bytes")
        if self._unpacked > MAX_RATIO * self._compressed + RATIO_GRACE:
            found = f"more than {MAX_RATIO} times as many bytes unpacked as packed"
            raise Broken("compression_ratio", found, f"{MAX_RATIO} times")


@dataclass(frozen=True, slots=True)
class _Header:
    path: bytes
    kind: bytes
    size: int


def unpack_tarball(file: BinaryIO, members: Members, sinks: Sinks) -> None:
    """Write the selected members, unless there is a reason against the archive.

    The first adapter found is written in the same pass. The archive is read again only if another adapter lies at a
    shallower level.

    Raises:
        Broken: the rest of the archive cannot be read.
        OSError: the archive could not be read, or a file not be written.
    """
    first: tuple[str, ...] | None = None
    for header, stream in _walk(file, members.most):
        member = _note(header, members)
        if member and first is None:
            first = member.folder
        if member and member.folder == first and members.fits(member) and not members.reasons:
            sinks.write(member.name, stream.pieces(header.size))
        else:
            stream.skip(header.size)
    folder = members.finish()
    if folder is None or members.reasons or folder == first:
        return
    sinks.discard()
    again = Members(members.caps)
    file.seek(0)
    for header, stream in _walk(file, members.most):
        member = _note(header, again)
        if member and member.folder == folder:
            sinks.write(member.name, stream.pieces(header.size))
        else:
            stream.skip(header.size)


def _walk(file: BinaryIO, most: int) -> Iterator[tuple[_Header, GzipStream]]:
    """Yield each member's header with the stream at its bytes; the caller reads exactly these.

    Raises:
        Broken: the rest of the archive cannot be read.
    """
    stream = GzipStream(file, most + _MAX_TAR_BYTES)
    extended: dict[str, str] = {}
    is_first = True
    while (block := stream.exactly(_BLOCK)) != _ZEROS:
        header = _read_header(block)
        if header.kind == _PAX or (header.kind == _PAX_GLOBAL and is_first):
            records = _read_pax(stream, header)
            if extended or (header.kind == _PAX_GLOBAL and records.keys() & {"path", "size"}):
                raise _unsupported("extended headers for several members, or several for one")
            extended = records if header.kind == _PAX else {}
        else:
            header = _extend(header, extended)
            yield header, stream
            stream.exactly(-header.size % _BLOCK)
            extended = {}
        is_first = False
    if extended or stream.exactly(_BLOCK) != _ZEROS:
        raise Broken("corrupt_archive", "an end in the wrong place", "two blocks of zeros at the end")
    stream.end()


def _note(header: _Header, members: Members) -> Member | None:
    """Register a member; return it if it may be one of the adapter's two files."""
    is_folder = header.kind == _FOLDER or (header.kind == _FILE and header.path.endswith(b"/"))
    if header.kind not in {_FILE, _FOLDER}:
        found = _REFUSED.get(header.kind, f"a member of the type {header.kind!r}")
        members.count()
        members.refuse("unsupported_member", header.path, found, "files and folders (`tar -h` follows links)")
        if header.size:
            raise Broken("corrupt_archive", f"{found} with bytes of its own", "files and folders")
        return None
    if is_folder and header.size:
        raise Broken("corrupt_archive", "a folder with bytes of its own", "files and folders")
    return members.add(header.path, header.size, is_folder=is_folder)


def _read_header(block: bytes) -> _Header:
    magic = block[257:265]
    if magic not in {b"ustar\x0000", b"ustar  \0"}:
        raise Broken("corrupt_archive", "a block that is no tar header", "a tar archive inside of the gzip file")
    if _octal(block[148:156]) != sum(block[:148]) + 8 * ord(" ") + sum(block[156:]):
        raise Broken("corrupt_archive", "a tar header with a wrong checksum", "an undamaged archive")
    # GNU's older format stores times in the bytes of POSIX's path prefix.
    path = _text(block[:100])
    if magic == b"ustar\x0000" and (prefix := _text(block[345:500])):
        path = prefix + b"/" + path
    kind = block[156:157]
    if kind in {b"L", b"K"}:
        raise _unsupported("a name in GNU's long form")
    if kind == b"S":
        raise _unsupported("a sparse file")
    return _Header(path, _FILE if kind == b"\0" else kind, _number(block[124:136]))


def _read_pax(stream: GzipStream, header: _Header) -> dict[str, str]:
    """Parse the records of an extended (pax) header.

    Raises:
        Broken: the header is too long or malformed, repeats a key, or changes the interpretation of the archive.
    """
    if header.size > _MAX_PAX_BYTES:
        raise _unsupported(f"an extended header of {header.size} bytes")
    raw = stream.exactly(header.size)
    stream.exactly(-header.size % _BLOCK)
    records: dict[str, str] = {}
    position = 0
    while position < len(raw):
        match = _RECORD_LENGTH.match(raw, position)
        end = position + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(raw) or raw[end - 1 : end] != b"\n":
            raise _malformed_pax()
        key, equals, value = raw[match.end() : end - 1].partition(b"=")
        try:
            name = key.decode("utf-8")
        except UnicodeDecodeError:
            raise _malformed_pax() from None
        # Readers disagree about the records after an empty key.
        if not name or not equals or name in records:
            raise _malformed_pax()
        # Values of unused keys may hold any bytes.
        records[name] = value.decode("utf-8", "surrogateescape")
        position = end
    if any(key.startswith("GNU.sparse.") for key in records):
        raise _unsupported("a sparse file")
    if records.get("hdrcharset", _PLAIN_CHARSET) != _PLAIN_CHARSET:
        raise _unsupported("names in another character set")
    return records


def _extend(header: _Header, extended: dict[str, str]) -> _Header:
    path, size = header.path, header.size
    if "path" in extended:
        path = extended["path"].encode("utf-8", "surrogateescape")
    if "size" in extended:
        if not _SIZE.fullmatch(extended["size"]):
            raise _malformed_pax()
        size = int(extended["size"])
    return _Header(path, header.kind, size)


def _text(raw: bytes) -> bytes:
    """Return a field's text, which is terminated by NUL if it is shorter than the field."""
    text, _, rest = raw.partition(b"\0")
    if rest.strip(b"\0"):
        raise Broken("corrupt_archive", "bytes behind the end of a name", "names that end with NUL")
    return text


def _octal(raw: bytes) -> int:
    match = _OCTAL.fullmatch(raw)
    if match is None:
        raise Broken("corrupt_archive", "a tar header with a field that is no number", "octal numbers")
    return int(match[1], 8)


def _number(raw: bytes) -> int:
    """Parse a size: octal digits, or big-endian after the byte 0x80, which GNU uses from 8 GiB up."""
    return int.from_bytes(raw[1:]) if raw[0] == 0x80 else _octal(raw)


def _unsupported(found: str) -> Broken:
    return Broken("unsupported_archive", found, "files and folders as `tar -czf` writes them")


def _malformed_pax() -> Broken:
    return Broken("corrupt_archive", "a malformed extended header", "records of a length, a key and a value")
