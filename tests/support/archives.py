"""Adapter archives for tests: as common tools write them, and malformed ones."""

import gzip
import io
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

GOOD = {CONFIG: b'{"peft_type": "LORA"}', WEIGHTS: b"weights" * 100}


def member(
    name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, **fields: object
) -> tuple[tarfile.TarInfo, bytes]:
    """Build a tar member. ``fields`` are attributes of TarInfo."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def tar_of(
    members: Iterable[tuple[tarfile.TarInfo, bytes]], *, format_: Literal[0, 1, 2] = tarfile.USTAR_FORMAT
) -> bytes:
    """Concatenate members and the end of the archive. ``size`` may disagree with the data."""
    raw = bytearray()
    for info, data in members:
        raw += info.tobuf(format_, "utf-8", "surrogateescape")
        raw += data + bytes(-len(data) % 512)
    return bytes(raw) + bytes(1024)


def tar_gz(*members: tuple[tarfile.TarInfo, bytes], format_: Literal[0, 1, 2] = tarfile.USTAR_FORMAT) -> bytes:
    return gzip.compress(tar_of(members, format_=format_), 1, mtime=0)


def good_members(folder: str = "") -> list[tuple[tarfile.TarInfo, bytes]]:
    return [member(folder + name, data) for name, data in GOOD.items()]


def good_tar_gz(*more: tuple[tarfile.TarInfo, bytes], folder: str = "") -> bytes:
    return tar_gz(*good_members(folder), *more)


def reseal(block: bytes) -> bytes:
    """Recompute the checksum of a tar header."""
    total = sum(block[:148]) + 8 * ord(" ") + sum(block[156:512])
    return block[:148] + b"%06o\0 " % total + block[156:]


def edited_tar_gz(edit: Callable[[bytes], bytes]) -> bytes:
    """Edit the first header of a good archive and recompute its checksum."""
    raw = tar_of(good_members())
    return gzip.compress(reseal(edit(raw[:512])) + raw[512:], 1, mtime=0)


@dataclass(frozen=True)
class ZipMember:
    """One member. Fields that are None get their right values.

    Attributes:
        packed: the compressed bytes as they stand in the file.
        local: changes to the member's local header, by field of this class.
        descriptor: bytes behind the compressed ones.
    """

    name: bytes
    data: bytes = b""
    method: int = 8
    flags: int = 0
    packed: bytes | None = None
    crc: int | None = None
    packed_size: int | None = None
    size: int | None = None
    extra: bytes = b""
    comment: bytes = b""
    mode: int = 0o100644
    offset: int | None = None
    descriptor: bytes = b""
    local: tuple[tuple[str, object], ...] = ()

    def stored_bytes(self) -> bytes:
        if self.packed is not None:
            return self.packed
        if self.method != 8:
            return self.data
        deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
        return deflater.compress(self.data) + deflater.flush()

    def numbers(self) -> tuple[int, int, int]:
        crc = zlib.crc32(self.data) if self.crc is None else self.crc
        packed = len(self.stored_bytes()) if self.packed_size is None else self.packed_size
        return crc, packed, len(self.data) if self.size is None else self.size

    def local_entry(self) -> bytes:
        one = replace(self, **{"packed": self.stored_bytes(), **dict(self.local)})  # type: ignore[arg-type]
        head = struct.pack(
            "<4s5H3L2H", b"PK\3\4", 20, one.flags, one.method, 0, 0x21, *one.numbers(), len(one.name), len(one.extra)
        )
        return head + one.name + one.extra + one.stored_bytes() + one.descriptor

    def central_entry(self, offset: int) -> bytes:
        lengths = len(self.name), len(self.extra), len(self.comment)
        place = offset if self.offset is None else self.offset
        head = struct.pack(
            "<4s6H3L5H2L",
            *(b"PK\1\2", 0x0314, 20, self.flags, self.method, 0, 0x21, *self.numbers(), *lengths),
            *(0, 0, self.mode << 16, place),
        )
        return head + self.name + self.extra + self.comment


def zip_of(
    *members: ZipMember, before: bytes = b"", between: bytes = b"", tail: bytes = b"", end: dict[int, int] | None = None
) -> bytes:
    """Build a zip of these members. ``end`` replaces fields of the end record by their index."""
    raw, directory = bytearray(before), bytearray()
    for one in members:
        directory += one.central_entry(len(raw))
        raw += one.local_entry()
    raw += between
    fields = [0, 0, len(members), len(members), len(directory), len(raw), 0]
    for index, value in (end or {}).items():
        fields[index] = value
    return bytes(raw + directory + struct.pack("<4s4H2LH", b"PK\5\6", *fields) + tail)


def good_zip(*more: ZipMember, **changes: object) -> bytes:
    """Build a good zip, with ``changes`` to the member of the weights."""
    config, weights = (ZipMember(name.encode(), data) for name, data in GOOD.items())
    return zip_of(config, replace(weights, **changes), *more)  # type: ignore[arg-type]


def descriptor(data: bytes, packed: int, *, signed: bool = True) -> bytes:
    return (b"PK\x07\x08" if signed else b"") + struct.pack("<3L", zlib.crc32(data), packed, len(data))


def gzip_zeros(head: bytes, size: int) -> bytes:
    """Build a gzip file of some bytes followed by this number of zeros."""
    target = io.BytesIO()
    with gzip.GzipFile(fileobj=target, mode="wb", mtime=0) as file:
        file.write(head)
        for _ in range(size // 2**20):
            file.write(bytes(2**20))
    return target.getvalue()
