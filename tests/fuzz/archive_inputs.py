"""Archive inputs: members as tar and zip write them, mutated at the structural points of the formats."""

import gzip
import random
import tarfile
from dataclasses import replace
from typing import Any

from tests.fuzz.adapter_inputs import GOOD_WEIGHTS
from tests.fuzz.mutations import mutate_bytes
from tests.support.archives import CONFIG, WEIGHTS, ZipMember, descriptor, reseal, zip_of

_TOPS = ("", "", "./", "top/", "./top/")
_DEEP = ("checkpoint-1", "checkpoint-2", "a/b", "__MACOSX", "adapter_model.bin")
_TAR_FIELDS = ((0, 100), (100, 8), (124, 12), (136, 12), (148, 8), (156, 1), (157, 100), (257, 8), (329, 8), (345, 155))
_TAR_TEXTS = (
    *(b"00000000000\0", b"77777777777\0", b"\x80" + bytes(10) + b"\x09", b"\xff" * 12),
    *(b"            ", b"-1", b"0", b"9" * 12),
    *(b"1", b"2", b"3", b"5", b"7", b"x", b"g", b"L", b"K", b"S", b"V", b"\0", b"ustar\x0000", b"ustar  \0", bytes(8)),
    *(CONFIG.encode(), WEIGHTS.encode(), b"../../evil", b"/etc/passwd", b"a\\b", b"README.md", b"a" * 155, b"\xff\xfe"),
)  # fmt: skip
_PAX = (
    *(b"path=../../evil", b"path=" + CONFIG.encode(), b"mtime=1.5"),
    *(b"size=0", b"size=512", b"size=-1", b"size=99999999999"),
    *(b"GNU.sparse.major=1", b"hdrcharset=BINARY", b"linkpath=/etc", b"comment=" + b"c" * 900, b"=", b"a", b"path=\0"),
)  # fmt: skip


def tarball_input(rng: random.Random) -> bytes:
    """Generate a ``.tar.gz`` with arbitrary headers, whose checksums are mostly right."""
    blocks: list[bytes] = []
    top = rng.choice(_TOPS)
    names = [CONFIG, WEIGHTS] + (
        [rng.choice(("README.md", "a/optimizer.pt", "../x", "x"))] if rng.random() < 0.2 else []
    )
    if rng.random() < 0.15:
        names += [f"{folder}/{name}" for folder in rng.choices(_DEEP, k=rng.choice((1, 2))) for name in names[:2]]
        rng.shuffle(names)
    for name in rng.choices(names, k=rng.choice((1, 2, 3, 70))) if rng.random() < 0.1 else names:
        data = rng.choice((b"", b"{}", b"d" * 511, b"d" * 512, b"d" * 513, GOOD_WEIGHTS))
        if rng.random() < 0.15:
            records = b"".join(_pax_record(rng) for _ in range(rng.choice((1, 1, 2, 5))))
            blocks += _tar_member(rng, "pax", records, rng.choice((b"x", b"x", b"g")))
        blocks += _tar_member(rng, (rng.choice(_TOPS) if rng.random() < 0.02 else top) + name, data, b"0")
    blocks.append(bytes(512 * rng.choice((2, 2, 2, 2, 0, 1, 20))))
    raw = b"".join(blocks)
    if rng.random() < 0.15:
        raw = mutate_bytes(rng, raw, blocks)
    packed = gzip.compress(raw, rng.choice((0, 1, 6)), mtime=0)
    if rng.random() < 0.02:
        packed += rng.choice((packed, b"\0", b"x", packed[:10]))
    return mutate_bytes(rng, packed, SEEDS) if rng.random() < 0.25 else packed


def _pax_record(rng: random.Random) -> bytes:
    text = rng.choice(_PAX)
    length = len(text) + 3 + (len(text) > 6) + (len(text) > 95)
    record = b"%d %s\n" % (length + (rng.choice((1, -1, 9, 10**9)) if rng.random() < 0.1 else 0), text)
    return mutate_bytes(rng, record) if rng.random() < 0.1 else record


def _tar_member(rng: random.Random, name: str, data: bytes, kind: bytes) -> list[bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.type = len(data), kind
    block = info.tobuf(rng.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT)))[:512]
    if rng.random() < 0.2:
        start, length = rng.choice(_TAR_FIELDS)
        text = rng.choice(_TAR_TEXTS)[:length]
        block = block[:start] + text + block[start + len(text) :]
        block = reseal(block) if rng.random() < 0.9 else block
    return [block, data + bytes(-len(data) % 512)]


_ZIP_CHANGES: tuple[dict[str, Any], ...] = (
    *({"flags": 1 << bit} for bit in range(16)),
    *({"method": method} for method in (0, 1, 8, 9, 12, 14, 93, 95, 99)),
    *({field: value} for field in ("crc", "packed_size", "size", "offset") for value in (0, 1, 30, 2**31, 2**32 - 1)),
    *({"mode": mode} for mode in (0, 0o120777, 0o040755, 0o060000, 0o170000)),
    *({"extra": extra} for extra in (b"\1\0\x08\0" + bytes(8), b"\x99", b"UT\5\0\3abcd", b"up\1\0a", bytes(5000))),
    *({"comment": b"c"}, {"packed": b""}, {"packed": b"\xff" * 9}, {"packed": bytes(40)}, {"descriptor": b"d" * 16}),
    *({"name": name} for name in (b"../evil", b"/etc/passwd", b"a\\b", b"\0", b"", b"top/", b"README.md", b"x" * 300)),
)  # fmt: skip


def zip_input(rng: random.Random) -> bytes:
    """Generate a ``.zip`` with arbitrary fields that mostly agree with each other."""
    top, weights = rng.choice(_TOPS), rng.choice((GOOD_WEIGHTS, b"", b"w" * 70))
    members = [_zip_member(rng, top + CONFIG, b"{}"), _zip_member(rng, top + WEIGHTS, weights)]
    if rng.random() < 0.2:
        members.append(_zip_member(rng, rng.choice(("README.md", "__MACOSX/x", "top/", f"b/{CONFIG}")), b"x"))
    if rng.random() < 0.15:
        deep = rng.choices(_DEEP, k=rng.choice((1, 2)))
        members += [_zip_member(rng, f"{top}{folder}/{name}", b"d") for folder in deep for name in (CONFIG, WEIGHTS)]
        rng.shuffle(members)
    if rng.random() < 0.05:
        members = rng.choices([replace(one, data=one.data[:99]) for one in members], k=rng.choice((0, 1, 3, 70)))
    more: dict[str, Any] = {}
    if rng.random() < 0.1:
        more["end"] = {rng.randrange(7): rng.choice((0, 1, 2, 3, 22, 100, 0xFFFF))}
    if rng.random() < 0.05:
        more[rng.choice(("before", "between", "tail"))] = rng.choice(
            (b"\0", b"PK\3\4", b"PK\5\6" + bytes(18), b"x" * 22)
        )
    raw = zip_of(*members, **more)
    return mutate_bytes(rng, raw, SEEDS) if rng.random() < 0.3 else raw


def _zip_member(rng: random.Random, name: str, data: bytes) -> ZipMember:
    made = ZipMember(name.encode(), data, method=rng.choice((0, 8)))
    if rng.random() < 0.15:
        told = (("crc", 0), ("packed_size", 0), ("size", 0))
        signed = rng.random() < 0.7
        made = replace(made, flags=8, local=told, descriptor=descriptor(data, len(made.stored_bytes()), signed=signed))
    if rng.random() < 0.15:
        made = replace(made, **rng.choice(_ZIP_CHANGES))
    if rng.random() < 0.07:
        made = replace(made, local=tuple(rng.choice(_ZIP_CHANGES).items()))
    if rng.random() < 0.01:
        # Bombs: members as large as declared, or larger.
        made = replace(made, data=bytes(2**21), size=rng.choice((None, 1, 2**30)))
    return made


def archive_input(rng: random.Random) -> tuple[bytes]:
    return (tarball_input(rng) if rng.random() < 0.5 else zip_input(rng),)


def _seeds() -> tuple[bytes, ...]:
    members = [ZipMember(CONFIG.encode(), b"{}"), ZipMember(WEIGHTS.encode(), GOOD_WEIGHTS)]
    infos = []
    for one in members:
        info = tarfile.TarInfo(one.name.decode())
        info.size = len(one.data)
        infos += [info.tobuf(tarfile.USTAR_FORMAT), one.data + bytes(-len(one.data) % 512)]
    return zip_of(*members), gzip.compress(b"".join(infos) + bytes(1024), mtime=0), b"PK\3\4"


#: Good archives, and the first bytes of a zip file.
SEEDS = _seeds()
