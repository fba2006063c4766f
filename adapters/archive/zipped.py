"""Parser of the unambiguous subset of ``.zip`` (APPNOTE 6.3.10, sections 4.3 to 4.5).

The file must consist of its local entries without gaps, then the central directory, then its end record. No other bytes
may come before, between or after them. So no byte belongs to two members and none is hidden. Local headers must agree
with the directory. Members are stored or deflated. Encryption, zip64, comments and split archives are refused.

https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from adapters.archive.inflating import Damaged, inflate
from adapters.archive.members import MAX_MEMBERS, MAX_PATH, MAX_RATIO, RATIO_GRACE, Broken, Member, Members, shown
from adapters.archive.sinks import Sinks

ZIP_MAGIC = b"PK\x03\x04"

_END = struct.Struct("<4s4H2LH")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_DESCRIPTOR = struct.Struct("<3L")
_END_MAGIC, _CENTRAL_MAGIC, _DESCRIPTOR_MAGIC = b"PK\x05\x06", b"PK\x01\x02", b"PK\x07\x08"

_MAX_DIRECTORY_BYTES = 64 * 2**10
_MAX_EXTRA_BYTES = 4 * 2**10
_READ_BYTES = 64 * 2**10
_PIECE_BYTES = 2**20

_ENCRYPTED = 1 << 0 | 1 << 6 | 1 << 13
_DESCRIBED = 1 << 3
_UTF8 = 1 << 11
# Bits 1 and 2 hold the compression level.
_KNOWN_FLAGS = 1 << 1 | 1 << 2 | _DESCRIBED | _UTF8
_STORED, _DEFLATED = 0, 8

# Refused: zip64, AES encryption, and a path that overrides the header's.
_REFUSED_EXTRAS = {0x0001: "zip64", 0x9901: "AES encryption", 0x7075: "a second name"}


@dataclass(frozen=True, slots=True)
class _Entry:
    """Central directory entry of one member; ``begin`` is the offset of its local header."""

    path: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    mode: int
    begin: int


def unpack_zip(file: BinaryIO, members: Members, sinks: Sinks) -> None:
    """Write the selected members, if there is no reason against the archive.

    Raises:
        Broken: the rest of the archive cannot be read.
        OSError: the archive could not be read, or a file not be written.
    """
    entries, directory_begin = _read_directory(file)
    adapter_files = [(member, entry) for entry in entries if (member := _take(entry, members))]
    starts = _locate(file, entries, directory_begin, members)
    folder = members.finish()
    if members.reasons:
        return
    for member, entry in adapter_files:
        if member.folder == folder:
            file.seek(starts[entry.path])
            sinks.write(member.name, _inflated(file, entry))


def _read_directory(file: BinaryIO) -> tuple[list[_Entry], int]:
    """Return the central directory's entries and its offset."""
    size = file.seek(0, os.SEEK_END)
    if size < _END.size:
        raise _truncated()
    end_begin = file.seek(size - _END.size)
    magic, disk, first_disk, here, count, length, begin, comment = _END.unpack(file.read(_END.size))
    if magic != _END_MAGIC or comment:
        raise Broken("corrupt_archive", "no end record in the last 22 bytes", "a whole zip without a comment")
    if 0xFFFF in (here, count) or 0xFFFFFFFF in (length, begin):
        raise _unsupported("zip64")
    if disk or first_disk or here != count:
        raise _unsupported("one part of several")
    if count > MAX_MEMBERS or length > _MAX_DIRECTORY_BYTES:
        raise Broken("too_many_members", f"{count} members in {length} bytes", f"{MAX_MEMBERS} members")
    if begin + length != end_begin:
        raise Broken("corrupt_archive", "bytes around the central directory", "nothing before or behind it")
    file.seek(begin)
    raw = file.read(length)
    entries, position = [], 0
    for _ in range(count):
        entry, position = _read_entry(raw, position)
        entries.append(entry)
    if position != length:
        raise Broken("corrupt_archive", "bytes behind the last directory entry", "nothing behind it")
    return entries, begin


def _read_entry(raw: bytes, position: int) -> tuple[_Entry, int]:
    """Return the entry at this position, and the position after it."""
    if position + _CENTRAL.size > len(raw):
        raise Broken("corrupt_archive", "a directory shorter than its entries", "a whole zip")
    fields = _CENTRAL.unpack_from(raw, position)
    magic, _, _, flags, method, _, _, crc, packed, size = fields[:10]
    path_length, extra_length, comment_length, disk, _, attributes, begin = fields[10:]
    path_end = position + _CENTRAL.size + path_length
    extra_end = path_end + extra_length
    if magic != _CENTRAL_MAGIC or extra_end > len(raw) or comment_length or disk:
        raise Broken("corrupt_archive", "a malformed directory entry", "entries without a comment, on one disk")
    path = raw[position + _CENTRAL.size : path_end]
    _check_extra(raw[path_end:extra_end], path)
    if 0xFFFFFFFF in (packed, size, begin):
        raise _unsupported("zip64", path)
    return _Entry(path, flags, method, crc, packed, size, attributes >> 16, begin), extra_end


def _check_extra(raw: bytes, path: bytes) -> None:
    position = 0
    while position < len(raw):
        if position + 4 > len(raw):
            raise Broken("corrupt_archive", "a malformed extra field", "whole fields", field=shown(path))
        kind, length = struct.unpack_from("<2H", raw, position)
        if kind in _REFUSED_EXTRAS:
            raise _unsupported(_REFUSED_EXTRAS[kind], path)
        position += 4 + length
    if position != len(raw):
        raise Broken("corrupt_archive", "a malformed extra field", "whole fields", field=shown(path))


def _take(entry: _Entry, members: Members) -> Member | None:
    """Return the member if it may be one of the adapter's two files and is not refused."""
    is_folder = entry.path.endswith(b"/")
    member = members.add(entry.path, entry.size, is_folder=is_folder)
    kind = stat.S_IFMT(entry.mode)
    before = len(members.reasons)
    if kind not in {0, stat.S_IFDIR if is_folder else stat.S_IFREG}:
        found = "a symbolic link" if kind == stat.S_IFLNK else "no plain file or folder"
        members.refuse("unsupported_member", entry.path, found, "files and folders")
    if entry.flags & _ENCRYPTED:
        members.refuse("encrypted_member", entry.path, "an encrypted member", "no encryption")
    elif entry.flags & ~_KNOWN_FLAGS:
        members.refuse("unsupported_member", entry.path, f"flags {entry.flags:#06x}", "flags that zip itself sets")
    if entry.method not in {_STORED, _DEFLATED}:
        members.refuse("unsupported_member", entry.path, f"compression method {entry.method}", "stored or deflated")
    if is_folder and entry.size:
        members.refuse("corrupt_archive", entry.path, "a folder with bytes of its own", "an empty entry")
    if entry.method == _STORED and entry.size != entry.packed and not entry.flags & _ENCRYPTED:
        found = f"{entry.packed} bytes stored for {entry.size}"
        members.refuse("corrupt_archive", entry.path, found, "the same number")
    if entry.size > MAX_RATIO * entry.packed + RATIO_GRACE:
        found = f"{entry.size} bytes packed into {entry.packed}"
        members.refuse("compression_ratio", entry.path, found, f"{MAX_RATIO} times")
    return member if len(members.reasons) == before else None


def _locate(file: BinaryIO, entries: list[_Entry], directory_begin: int, members: Members) -> dict[bytes, int]:
    """Return the offset of each member's bytes, after checking that the local entries are valid and contiguous."""
    starts, expected = {}, 0
    for entry in sorted(entries, key=lambda entry: entry.begin):
        if entry.begin != expected:
            word = "a hole" if entry.begin > expected else "an overlap"
            raise Broken("corrupt_archive", f"{word} before byte {entry.begin}", "members side by side")
        starts[entry.path] = start = _check_local(file, entry, directory_begin, members)
        expected = start + entry.packed
        if expected > directory_begin:
            raise _overrun(entry)
        if entry.flags & _DESCRIBED:
            expected += _check_descriptor(file, entry, expected)
    if expected != directory_begin:
        raise Broken("corrupt_archive", "bytes before the central directory", "members side by side")
    return starts


def _check_local(file: BinaryIO, entry: _Entry, directory_begin: int, members: Members) -> int:
    """Compare the member's local header with the directory, and return the offset of its bytes."""
    if entry.begin + _LOCAL.size > directory_begin:
        raise _overrun(entry)
    file.seek(entry.begin)
    magic, _, flags, method, _, _, crc, packed, size, path_length, extra_length = _LOCAL.unpack(file.read(_LOCAL.size))
    if magic != ZIP_MAGIC or path_length > MAX_PATH + 1 or extra_length > _MAX_EXTRA_BYTES:
        raise Broken("corrupt_archive", "a malformed member header", "what zip writes", field=shown(entry.path))
    path = file.read(path_length)
    _check_extra(file.read(extra_length), entry.path)
    directory_values = (entry.crc, entry.packed, entry.size)
    is_same = (crc, packed, size) == directory_values or (flags & _DESCRIBED and (crc, packed, size) == (0, 0, 0))
    if not is_same or (path, flags, method) != (entry.path, entry.flags, entry.method):
        found = "a header that says other things than the directory"
        members.refuse("corrupt_archive", entry.path, found, "the same in both places")
    start: int = entry.begin + _LOCAL.size + path_length + extra_length
    return start


def _check_descriptor(file: BinaryIO, entry: _Entry, position: int) -> int:
    """Check the data descriptor after the member's bytes and return its length. Its signature is optional."""
    file.seek(position)
    raw = file.read(len(_DESCRIPTOR_MAGIC) + _DESCRIPTOR.size)
    fields = _DESCRIPTOR.pack(entry.crc, entry.packed, entry.size)
    if raw == _DESCRIPTOR_MAGIC + fields:
        return len(raw)
    if raw.startswith(fields):
        return len(fields)
    raise Broken("corrupt_archive", "a descriptor that says other things than the directory", "the same in both places")


def _inflated(file: BinaryIO, entry: _Entry) -> Iterator[bytes]:
    """Yield the member's bytes in pieces, and check their size and CRC."""
    crc = size = 0
    for piece in _deflated_pieces(file, entry) if entry.method == _DEFLATED else _stored_pieces(file, entry):
        size += len(piece)
        if size > entry.size:
            break
        crc = zlib.crc32(piece, crc)
        yield piece
    if (size, crc) != (entry.size, entry.crc):
        found = "other bytes than its size and checksum say"
        raise Broken("corrupt_archive", found, "an undamaged archive", field=shown(entry.path))


def _stored_pieces(file: BinaryIO, entry: _Entry) -> Iterator[bytes]:
    left = entry.packed
    while left and (piece := file.read(min(left, _PIECE_BYTES))):
        left -= len(piece)
        yield piece


def _deflated_pieces(file: BinaryIO, entry: _Entry) -> Iterator[bytes]:
    inflater, left = zlib.decompressobj(-zlib.MAX_WBITS), entry.packed
    try:
        while not inflater.eof:
            source = inflater.unconsumed_tail
            if not source:
                source = file.read(min(left, _READ_BYTES))
                left -= len(source)
            piece = inflate(inflater, source, _PIECE_BYTES)
            if piece:
                yield piece
            elif not source:
                break
    except Damaged:
        left = -1
    if left or not inflater.eof or inflater.unused_data:
        raise Broken("corrupt_archive", "damaged compressed bytes", "an undamaged archive", field=shown(entry.path))


def _overrun(entry: _Entry) -> Broken:
    return Broken("corrupt_archive", "a member beyond the end of the members", "a whole zip", field=shown(entry.path))


def _truncated() -> Broken:
    return Broken("truncated_archive", "an archive that breaks off", "a whole archive")


def _unsupported(found: str, path: bytes | None = None) -> Broken:
    field = "archive" if path is None else shown(path)
    return Broken("unsupported_archive", found, "a zip below 4 GiB as `zip -r` writes it, or a .tar.gz", field=field)
