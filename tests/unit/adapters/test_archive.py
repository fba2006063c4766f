import gzip
import io
import shutil
import subprocess
import tarfile
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters import cache
from adapters.archive import CONFIG_NAME, WEIGHTS_NAME, unpack
from adapters.archive.inflating import Damaged, inflate
from adapters.archive.members import MAX_MEMBERS, SPARE_BYTES
from adapters.errors import AdapterRejected, Reason, StoreUnavailable, ValidationFailed
from adapters.sandbox import unpack_in_child
from adapters.stores.files import file_digest
from tests.support.archives import (
    CONFIG,
    GOOD,
    WEIGHTS,
    ZipMember,
    descriptor,
    edited_tar_gz,
    good_members,
    good_tar_gz,
    good_zip,
    gzip_zeros,
    member,
    reseal,
    tar_gz,
    tar_of,
    zip_of,
)

CAPS = {"config_bytes": 2**20, "weights_bytes": 2**26}
EXTRAS = ("README.md", "tokenizer.json", "optimizer.pt", "training_args.bin", ".DS_Store", "._adapter_config.json")
DATA = GOOD[WEIGHTS]

Reasons = list[tuple[str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Target folder of the files; nothing else may change."""
    return new_folder(tmp_path)


def new_folder(parent: Path) -> Path:
    path = parent / "unpacked"
    path.mkdir()
    return path


def refused(raw: bytes, folder: Path, **caps: int) -> Reasons:
    """Return the codes and fields of the reasons, and check that no files are left."""
    return [(reason.code, reason.field) for reason in refusal(raw, folder, **caps)]


def refusal(raw: bytes, folder: Path, **caps: int) -> tuple[Reason, ...]:
    """Return the reasons for a refusal, and check that no files are left."""
    archive = folder.parent / "archive"
    archive.write_bytes(raw)
    with pytest.raises(AdapterRejected) as caught:
        unpack(archive, folder, **CAPS | caps)
    assert list(folder.iterdir()) == []
    assert sorted(path.name for path in folder.parent.iterdir()) == ["archive", "unpacked"]
    return caught.value.reasons


def accepted(raw: bytes, folder: Path) -> None:
    archive = folder.parent / "archive"
    archive.write_bytes(raw)
    files = unpack(archive, folder, **CAPS)
    assert {name: file.path.read_bytes() for name, file in files.items()} == GOOD
    assert {name: file.digest for name, file in files.items()} == {name: file_digest(folder / name) for name in GOOD}
    assert {file.size for file in files.values()} == {len(data) for data in GOOD.values()}
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(GOOD, 0o600)


def peft_folder(parent: Path, name: str = "my-adapter") -> Path:
    path = parent / name
    path.mkdir()
    for file, data in (GOOD | dict.fromkeys(EXTRAS, b"extra")).items():
        (path / file).write_bytes(data)
    return path


def test_the_names_are_those_of_the_cache() -> None:
    assert (CONFIG_NAME, WEIGHTS_NAME) == (cache.CONFIG_NAME, cache.WEIGHTS_NAME)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("top", ["", "./", "my-adapter/", "./my-adapter/"])
def test_what_python_s_tarfile_writes(folder: Path, tmp_path: Path, form: int, top: str) -> None:
    source, raw = peft_folder(tmp_path), io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz", format=form) as tar:
        tar.add(source, arcname=top.removesuffix("/") or ".")
    shutil.rmtree(source)
    accepted(raw.getvalue(), folder)


@pytest.mark.parametrize("arguments", [["-C", "my-adapter", "."], ["my-adapter"], ["--format=pax", "my-adapter"]])
def test_what_the_tar_of_this_machine_writes(folder: Path, tmp_path: Path, arguments: list[str]) -> None:
    source = peft_folder(tmp_path)
    raw = subprocess.run(["tar", "-czf", "-", *arguments], cwd=tmp_path, check=True, capture_output=True).stdout  # noqa: S607
    shutil.rmtree(source)
    accepted(raw, folder)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("top", [".", "my-adapter"])
def test_what_python_s_zipfile_writes(folder: Path, tmp_path: Path, method: int, top: str) -> None:
    source, raw = peft_folder(tmp_path), io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as archive:
        for path in (source, *source.iterdir()):
            archive.write(path, path.relative_to(source if top == "." else tmp_path))
    shutil.rmtree(source)
    accepted(raw.getvalue(), folder)


def test_a_zip_written_to_a_pipe(folder: Path) -> None:
    """In this format, sizes and checksums follow the data."""

    class Pipe(io.RawIOBase):
        written = b""

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            self.written += bytes(data)  # type: ignore[call-overload]
            return len(data)  # type: ignore[arg-type]

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in GOOD.items():
            archive.writestr(name, data)
    accepted(pipe.written, folder)


@pytest.mark.parametrize("signed", [True, False])
def test_a_zip_with_descriptors(folder: Path, signed: bool) -> None:
    packed = len(ZipMember(b"", DATA).stored_bytes())
    zeros = (("crc", 0), ("packed_size", 0), ("size", 0))
    accepted(good_zip(flags=8, descriptor=descriptor(DATA, packed, signed=signed), local=zeros), folder)


def test_the_folder_that_a_mac_adds(folder: Path) -> None:
    accepted(good_zip(ZipMember(b"__MACOSX/", mode=0o040755), ZipMember(b"__MACOSX/a/._README.md", b"x")), folder)


#: Files that trainers, the hub and operating systems add to an adapter.
PASSED_OVER = (
    *(
        "checkpoint-100/optimizer.pt",
        "checkpoint-100/deep/rng_state.pth",
        "runs/Nov27/events.out.tfevents.1",
        "card.pdf",
    ),
    *("adapter_model.bin", "old/adapter_model.bin", "Adapter_config.json", "adapter_config.json.bak", ".git/HEAD"),
    *(f"__MACOSX/{CONFIG}", f"__MACOSX/{WEIGHTS}", f"__MACOSX/._{CONFIG}", f"old/{CONFIG}", f"other/{WEIGHTS}"),
)


def packed(files: dict[str, bytes], *, zipped: bool) -> bytes:
    """Build an archive of these files, in this order."""
    if zipped:
        return zip_of(*(ZipMember(path.encode(), data) for path, data in files.items()))
    return tar_gz(*(member(path, data) for path, data in files.items()))


def adapter(folder: str, data: bytes | None = None) -> dict[str, bytes]:
    """Return an adapter's two files in a folder of an archive, with ``data`` as content if given."""
    return {f"{folder}{name}": good if data is None else data for name, good in GOOD.items()}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("top", ["", "my-adapter/", "home/me/out/"])
def test_everything_else_is_passed_over(folder: Path, top: str, zipped: bool) -> None:
    extras = {f"{top}{path}": b"extra" for path in PASSED_OVER}
    accepted(packed(extras | adapter(top), zipped=zipped), folder)
    for name in GOOD:
        (folder / name).unlink()
    accepted(packed(adapter(top) | extras, zipped=zipped), folder)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    "others",
    [("checkpoint-1/",), ("checkpoint-1/", "checkpoint-2/"), ("a/b/",), ("a/b/", "a/b/c/"), (f"{'d/' * 20}",)],
)
def test_the_shallowest_adapter_is_taken_wherever_it_is(folder: Path, others: tuple[str, ...], zipped: bool) -> None:
    deep: dict[str, bytes] = {}
    for other in others:
        deep |= adapter(other, b"of another")
    (config, config_data), (weights, weights_data) = adapter("").items()
    for files in (
        deep | adapter(""),
        adapter("") | deep,
        {config: config_data} | deep | {weights: weights_data},
        {weights: weights_data} | deep | {config: config_data},
    ):
        accepted(packed(files, zipped=zipped), folder)
        for name in GOOD:
            (folder / name).unlink()


@pytest.mark.parametrize("zipped", [False, True])
def test_a_level_with_one_file_of_the_two_does_not_count(folder: Path, zipped: bool) -> None:
    accepted(packed({CONFIG: b"{}"} | adapter("checkpoint-9/") | {f"a/{WEIGHTS}": b"w"}, zipped=zipped), folder)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_deeper_file_beyond_its_cap_does_not_matter(folder: Path, zipped: bool) -> None:
    accepted(packed({f"deep/{CONFIG}": b" " * (2**20 + 1)} | adapter(""), zipped=zipped), folder)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("top", ["", "out/"])
def test_two_adapters_at_the_shallowest_level_are_both_named(folder: Path, top: str, zipped: bool) -> None:
    files = adapter(f"{top}a/b/") | adapter(f"{top}checkpoint-10/") | adapter(f"{top}checkpoint-9/", b"x")
    (reason,) = refusal(packed(files, zipped=zipped), folder)
    assert (reason.code, reason.field) == ("several_folders", "archive")
    assert (
        f"2 adapters at one level, in {top}checkpoint-10 and {top}checkpoint-9. Pack only one of them."
        in reason.message
    )


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt", "adapter_model.pth"])
def test_a_pickle_alone_gets_the_way_to_convert_it(folder: Path, name: str, zipped: bool) -> None:
    files = {f"out/{CONFIG}": b"{}", f"out/{name}": b"PK", "out/deep/adapter_model.bin": b"PK"}
    (reason,) = refusal(packed(files, zipped=zipped), folder)
    assert (reason.code, reason.field) == ("pickle_format", f"out/{name}")
    assert "--convert" in reason.message
    assert "weights_only=True" in reason.message


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("files", "fields"),
    [
        ({CONFIG: b"{}"}, [WEIGHTS]),
        ({f"a/{WEIGHTS}": b"w"}, [CONFIG]),
        ({"README.md": b"x"}, [CONFIG, WEIGHTS]),
        ({CONFIG: b"{}", f"a/{WEIGHTS}": b"w"}, ["archive"]),
    ],
)
def test_an_archive_without_a_whole_adapter(
    folder: Path, files: dict[str, bytes], fields: list[str], zipped: bool
) -> None:
    assert refused(packed(files, zipped=zipped), folder) == [("missing_member", field) for field in fields]


@given(config=st.binary(max_size=3000), weights=st.binary(max_size=3000), zipped=st.booleans())
@settings(max_examples=40, deadline=None)
def test_any_bytes_come_out_as_they_went_in(
    tmp_path_factory: pytest.TempPathFactory, config: bytes, weights: bytes, zipped: bool
) -> None:
    folder = new_folder(tmp_path_factory.mktemp("any"))
    archive = folder.parent / "archive"
    if zipped:
        raw = zip_of(ZipMember(CONFIG.encode(), config), ZipMember(WEIGHTS.encode(), weights, method=0))
    else:
        raw = tar_gz(member(CONFIG, config), member(WEIGHTS, weights))
    archive.write_bytes(raw)
    files = unpack(archive, folder, **CAPS)
    assert [files[name].path.read_bytes() for name in (CONFIG, WEIGHTS)] == [config, weights]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../evil", "unsafe_path"),
        ("a/../evil", "unsafe_path"),
        ("/etc/passwd", "unsafe_path"),
        (f"/{CONFIG}", "unsafe_path"),
        ("a//b", "unsafe_path"),
        ("./../b", "unsafe_path"),
        ("././b", "unsafe_path"),
        ("..", "unsafe_path"),
        ("a\\..\\b", "unsafe_path"),
        ("C:evil", "unsafe_path"),
        ("a\nb", "unsafe_path"),
        ("a\u202eb", "unsafe_path"),
        (CONFIG, "duplicate_member"),
        (f"./{CONFIG}", "duplicate_member"),
    ],
)
def test_members_that_do_not_belong(folder: Path, path: str, code: str) -> None:
    shown = path if path.isprintable() else repr(path)
    assert refused(good_tar_gz(member(path, b"x")), folder) == [(code, shown)]
    assert refused(good_zip(ZipMember(path.encode(), b"x")), folder) == [(code, shown)]


def test_a_path_that_is_no_utf8(folder: Path) -> None:
    assert refused(good_zip(ZipMember(b"a\xffb", b"x")), folder) == [("unsafe_path", "a\ufffdb")]


def test_a_nul_in_a_path(folder: Path) -> None:
    assert refused(good_zip(ZipMember(b"a\0b", b"x")), folder) == [("unsafe_path", "'a\\x00b'")]
    header = edited_tar_gz(lambda block: block[:30] + b"x" + block[31:])
    assert refused(header, folder) == [("corrupt_archive", "archive")]


def test_a_long_path(folder: Path) -> None:
    assert refused(good_zip(ZipMember(b"a" * 256, b"x")), folder)[0][0] == "unsafe_path"


def test_every_reason_at_once(folder: Path) -> None:
    members = [member("../evil"), member("surprise", b"x"), member(WEIGHTS, kind=tarfile.SYMTYPE, linkname="/etc")]
    assert refused(tar_gz(*members), folder) == [
        ("unsafe_path", "../evil"),
        ("unsupported_member", WEIGHTS),
        ("missing_member", CONFIG),
    ]
    zipped = [ZipMember(b"../evil"), ZipMember(b"surprise", b"x"), ZipMember(WEIGHTS.encode(), mode=0o120777)]
    assert refused(zip_of(*zipped), folder) == [
        ("unsafe_path", "../evil"),
        ("unsupported_member", WEIGHTS),
        ("missing_member", CONFIG),
    ]


@pytest.mark.parametrize(
    "kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE]
)
def test_links_and_devices(folder: Path, kind: bytes) -> None:
    assert refused(good_tar_gz(member("link", kind=kind, linkname="/etc/passwd")), folder) == [
        ("unsupported_member", "link")
    ]


@pytest.mark.parametrize("mode", [0o120777, 0o060600, 0o020600, 0o010600, 0o140600, 0o040755])
def test_links_and_devices_in_a_zip(folder: Path, mode: int) -> None:
    assert refused(good_zip(mode=mode), folder) == [("unsupported_member", WEIGHTS)]


def pax(*records: bytes, kind: bytes = tarfile.XHDTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member("pax", b"".join(records), kind=kind)


def record(key: str, value: str) -> bytes:
    rest = f" {key}={value}\n".encode("utf-8", "surrogateescape")
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def test_a_pax_header_names_the_member(folder: Path) -> None:
    (config, config_data), weights = good_members()
    config.name, config.size = "x", 0
    records = record("path", CONFIG), record("size", str(len(config_data))), record("mtime", "1.5")
    comment = pax(record("comment", "c"), kind=tarfile.XGLTYPE)
    accepted(tar_gz(comment, pax(*records), (config, config_data), weights), folder)
    shutil.rmtree(folder)
    folder.mkdir()
    assert refused(good_tar_gz(pax(record("path", "../evil")), member("good", b"x")), folder) == [
        ("unsafe_path", "../evil")
    ]


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (record("GNU.sparse.major", "1"), "unsupported_archive"),
        (record("hdrcharset", "BINARY"), "unsupported_archive"),
        (record("path", "a") + record("path", "b"), "corrupt_archive"),
        (record("size", "-1"), "corrupt_archive"),
        (record("size", "9" * 19), "archive_too_large"),
        (record("comment", "x" * 2**16), "unsupported_archive"),
        (b"5 a=b\n", "corrupt_archive"),
        (b"4 =\n" + record("size", "512"), "corrupt_archive"),
        (b"999999 a=b\n", "corrupt_archive"),
        (b"99999999999999999999999999 a=b\n", "corrupt_archive"),
        (b"0 a=b\n", "corrupt_archive"),
        (b"2 a=b\n", "corrupt_archive"),
        (b"6 ab\n", "corrupt_archive"),
        (b"7 \xff=b\n", "corrupt_archive"),
        (b"nonsense", "corrupt_archive"),
    ],
)
def test_bad_pax_headers(folder: Path, records: bytes, code: str) -> None:
    assert refused(tar_gz(pax(records), *good_members()), folder) == [(code, "archive")]


def test_pax_headers_in_the_wrong_place(folder: Path) -> None:
    first, unsupported = pax(record("comment", "c")), [("unsupported_archive", "archive")]
    assert refused(tar_gz(first, first, *good_members()), folder) == unsupported
    assert refused(tar_gz(pax(record("size", "1"), kind=tarfile.XGLTYPE), *good_members()), folder) == unsupported
    late = pax(record("comment", "c"), kind=tarfile.XGLTYPE)
    assert refused(good_tar_gz(late), folder)[0] == ("unsupported_member", "pax")
    assert refused(good_tar_gz(first), folder) == [("corrupt_archive", "archive")]


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.GNUTYPE_SPARSE])
def test_gnu_s_own_headers(folder: Path, kind: bytes) -> None:
    assert refused(tar_gz(member("././@LongLink", b"a", kind=kind), *good_members()), folder) == [
        ("unsupported_archive", "archive")
    ]


@pytest.mark.parametrize(
    ("position", "text", "code"),
    [
        (124, b"77777777777\0", "archive_too_large"),
        (124, b"\x80" + b"\xff" * 11, "archive_too_large"),
        (124, b"\xff" * 12, "corrupt_archive"),
        (124, b"-0000000001\0", "corrupt_archive"),
        (124, b"            ", "corrupt_archive"),
        (257, b"ustar\x0001", "corrupt_archive"),
        (257, bytes(8), "corrupt_archive"),
        (156, b"5", "corrupt_archive"),
        (156, b"2", "unsupported_member"),
    ],
)
def test_lies_in_a_tar_header(folder: Path, position: int, text: bytes, code: str) -> None:
    raw = edited_tar_gz(lambda block: block[:position] + text + block[position + len(text) :])
    assert refused(raw, folder)[0][0] == code


def test_a_checksum_that_is_wrong(folder: Path) -> None:
    raw = tar_of(good_members())
    assert refused(gzip.compress(b"A" + raw[1:]), folder) == [("corrupt_archive", "archive")]
    assert reseal(raw[:512]) == raw[:512]


def test_a_size_of_8_gib_as_gnu_writes_it(folder: Path) -> None:
    size = 700
    accepted(
        gzip.compress(
            b"".join(
                reseal(block[:124] + b"\x80" + len(data).to_bytes(11) + block[136:]) + data + bytes(-len(data) % 512)
                for info, data in good_members()
                for block in [info.tobuf(tarfile.GNU_FORMAT)]
            )
            + bytes(1024)
        ),
        folder,
    )
    assert size == len(DATA)


@pytest.mark.parametrize("kept", [0, 3, 20, 100, -1, -8])
def test_a_tar_gz_that_breaks_off(folder: Path, kept: int) -> None:
    codes = {code for code, _ in refused(good_tar_gz()[:kept], folder)}
    assert codes <= {"truncated_archive", "unknown_archive"}


@pytest.mark.parametrize("blocks", [0, 1])
def test_a_tar_without_its_end(folder: Path, blocks: int) -> None:
    raw = tar_of(good_members())[: -1024 + 512 * blocks]
    assert refused(gzip.compress(raw), folder) == [("truncated_archive", "archive")]


def test_what_follows_the_end(folder: Path) -> None:
    trailing = [("trailing_data", "archive")]
    good, raw = good_tar_gz(), tar_of(good_members())
    assert refused(good + good, folder) == trailing
    assert refused(good + b"\0", folder) == trailing
    assert refused(gzip.compress(raw + b"x"), folder) == trailing
    assert refused(gzip.compress(raw + raw), folder) == trailing
    accepted(gzip.compress(raw + bytes(10240)), folder)


def test_damaged_gzip(folder: Path) -> None:
    raw = good_tar_gz()
    flipped = raw[:-8] + bytes([raw[-8] ^ 1]) + raw[-7:]
    assert refused(flipped, folder) == [("corrupt_archive", "archive")]
    assert refused(gzip.compress(b"no tar at all" * 100), folder) == [("corrupt_archive", "archive")]


def test_bombs(folder: Path) -> None:
    """Each is aborted early and never held in memory as a whole."""
    size = 2**26
    header = tar_of([member(WEIGHTS, size=size)])[:512]
    packed = ZipMember(b"", bytes(size)).stored_bytes()
    bombs = {
        gzip_zeros(header, size): [("compression_ratio", "archive")],
        good_zip(packed=packed, size=size): [("compression_ratio", WEIGHTS)],
        good_zip(packed=packed, size=700): [("corrupt_archive", WEIGHTS)],
    }
    tracemalloc.start()
    try:
        for raw, reasons in bombs.items():
            assert refused(raw, folder) == reasons
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_files_beyond_their_caps(folder: Path) -> None:
    for raw in (good_tar_gz(), good_zip()):
        assert refused(raw, folder, config_bytes=1, weights_bytes=699) == [
            ("member_too_large", CONFIG),
            ("member_too_large", WEIGHTS),
        ]
    too_large = [("archive_too_large", "archive")]
    room = CAPS["config_bytes"] + CAPS["weights_bytes"] + SPARE_BYTES
    assert refused(good_tar_gz(member("optimizer.pt", size=room)), folder) == too_large
    assert refused(good_zip(ZipMember(b"optimizer.pt", size=room)), folder) == too_large


def test_too_many_members(folder: Path) -> None:
    many = [member("../x") for _ in range(MAX_MEMBERS + 1)]
    assert refused(tar_gz(*many), folder) == [("unsafe_path", "../x"), ("too_many_members", "archive")]
    links = [member("x", kind=tarfile.SYMTYPE) for _ in range(MAX_MEMBERS + 1)]
    assert refused(tar_gz(*links), folder)[-1] == ("too_many_members", "archive")
    assert refused(zip_of(*[ZipMember(b"x")] * (MAX_MEMBERS + 1)), folder) == [("too_many_members", "archive")]
    encrypted = [ZipMember(b"../x", method=9, flags=1, mode=0o120000)] * MAX_MEMBERS
    assert [code for code, _ in refused(zip_of(*encrypted), folder)] == [
        "unsafe_path",
        "unsupported_member",
        "encrypted_member",
        "missing_member",
        "missing_member",
    ]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"flags": 1}, "encrypted_member"),
        ({"flags": 1 << 6}, "encrypted_member"),
        ({"flags": 1 << 13}, "encrypted_member"),
        ({"flags": 1 << 5}, "unsupported_member"),
        ({"method": 12}, "unsupported_member"),
        ({"method": 99}, "unsupported_member"),
        ({"method": 0, "size": 701}, "corrupt_archive"),
        ({"size": 699}, "corrupt_archive"),
        ({"size": 701}, "corrupt_archive"),
        ({"crc": 1}, "corrupt_archive"),
        ({"packed": b"\xff" * 20}, "corrupt_archive"),
        ({"packed": ZipMember(b"", DATA).stored_bytes() + b"more"}, "corrupt_archive"),
        ({"packed": ZipMember(b"", DATA).stored_bytes()[:-1]}, "corrupt_archive"),
        ({"packed": b""}, "corrupt_archive"),
        ({"local": (("crc", 1),)}, "corrupt_archive"),
        ({"local": (("name", WEIGHTS.upper().encode()),)}, "corrupt_archive"),
        ({"local": (("method", 0),)}, "corrupt_archive"),
        ({"local": (("flags", 2),)}, "corrupt_archive"),
        ({"extra": b"\x99\x01\x04\0abc"}, "corrupt_archive"),
        ({"extra": b"\x99"}, "corrupt_archive"),
        ({"extra": b"\x01\0\0\0"}, "unsupported_archive"),
        ({"extra": b"\x01\x99\0\0"}, "unsupported_archive"),
        ({"extra": b"\x75\x70\0\0"}, "unsupported_archive"),
        ({"packed_size": 0xFFFFFFFF}, "unsupported_archive"),
    ],
)
def test_lies_about_a_zip_s_member(folder: Path, changes: dict[str, object], code: str) -> None:
    assert refused(good_zip(**changes), folder) == [(code, WEIGHTS)]


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 0},
        {"offset": 3},
        {"offset": 2**31},
        {"packed_size": 10},
        {"packed_size": 2**31},
        {"comment": b"x"},
        {"descriptor": b"left over"},
        {"flags": 8},
        {"flags": 8, "descriptor": bytes(16)},
        {"local": (("extra", bytes(5000)),)},
        {"local": (("name", b"n" * 300),)},
        {"local": (("name", b""),)},
    ],
)
def test_members_of_a_zip_lie_side_by_side(folder: Path, changes: dict[str, object]) -> None:
    assert refused(good_zip(**changes), folder)[0][0] == "corrupt_archive"


def test_two_members_in_the_same_bytes(folder: Path) -> None:
    """Each member alone is valid; overlapping members allow bombs that grow quadratically with the archive size."""
    config, weights = (ZipMember(name.encode(), data) for name, data in GOOD.items())
    overlapping = ZipMember(b"README.md", weights.data, offset=len(config.local_entry()))
    raw = zip_of(config, weights, overlapping)
    assert refused(raw, folder) == [("corrupt_archive", "archive")]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"tail": b"x"}, "corrupt_archive"),
        ({"tail": b"comment", "end": {6: 7}}, "corrupt_archive"),
        ({"before": b"MZ"}, "unknown_archive"),
        ({"between": b"hidden"}, "corrupt_archive"),
        ({"end": {0: 1}}, "unsupported_archive"),
        ({"end": {1: 1}}, "unsupported_archive"),
        ({"end": {2: 1}}, "unsupported_archive"),
        ({"end": {2: 1, 3: 1}}, "corrupt_archive"),
        ({"end": {2: 3, 3: 3}}, "corrupt_archive"),
        ({"end": {2: 0xFFFF, 3: 0xFFFF}}, "unsupported_archive"),
        ({"end": {2: 65, 3: 65}}, "too_many_members"),
        ({"end": {4: 10}}, "corrupt_archive"),
        ({"end": {5: 1}}, "corrupt_archive"),
        ({"end": {5: 0xFFFFFFFF}}, "unsupported_archive"),
    ],
)
def test_lies_in_a_zip_s_end_record(folder: Path, changes: dict[str, object], code: str) -> None:
    members = [ZipMember(name.encode(), data) for name, data in GOOD.items()]
    assert refused(zip_of(*members, **changes), folder) == [(code, "archive")]  # type: ignore[arg-type]


@pytest.mark.parametrize("kept", [4, 21, 30, 100, -1, -22, -23])
def test_a_zip_that_breaks_off(folder: Path, kept: int) -> None:
    assert refused(good_zip()[:kept], folder)[0][0] in {"truncated_archive", "corrupt_archive"}


@pytest.mark.parametrize("raw", [b"", b"PK\5\6" + bytes(18), tar_of(good_members()), b"BZh91AY&SY", b"\xfd7zXZ\0"])
def test_other_kinds_of_archives(folder: Path, raw: bytes) -> None:
    assert refused(raw, folder) == [("unknown_archive", "archive")]


def test_a_file_that_is_there_already_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"mine")
    for raw in (good_tar_gz(), good_zip()):
        (tmp_path / "archive").write_bytes(raw)
        with pytest.raises(FileExistsError):
            unpack(tmp_path / "archive", folder, **CAPS)
        assert [path.read_bytes() for path in folder.iterdir()] == [b"mine"]


def in_child(raw: bytes, folder: Path, *, cpu_seconds: float = 60, mebibytes: int = 256, **caps: int) -> object:
    archive = folder.parent / "archive"
    archive.write_bytes(raw)
    limits = {"cpu_seconds": cpu_seconds, "address_bytes": mebibytes * 2**20}
    return unpack_in_child(archive, folder, **CAPS | caps, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", [good_tar_gz(), good_zip()])
def test_the_child_unpacks_as_this_process_does(folder: Path, tmp_path: Path, raw: bytes) -> None:
    there = in_child(raw, folder)
    shutil.rmtree(folder)
    folder.mkdir()
    assert there == unpack(tmp_path / "archive", folder, **CAPS)


def test_the_child_refuses_as_this_process_does(folder: Path) -> None:
    raw = good_tar_gz(member("../evil"), member("surprise"))
    with pytest.raises(AdapterRejected) as caught:
        in_child(raw, folder)
    assert [(reason.code, reason.field) for reason in caught.value.reasons] == refused(raw, folder)


def test_a_lack_of_memory_is_no_damage() -> None:
    class Starved:
        def decompress(self, source: bytes, count: int) -> bytes:
            raise zlib.error("Error -4 while decompressing data")

    with pytest.raises(MemoryError):
        inflate(Starved(), b"", 1)  # type: ignore[arg-type]
    with pytest.raises(Damaged):
        inflate(zlib.decompressobj(), b"no stream", 1)


def test_the_child_s_limits(folder: Path) -> None:
    # Members are read in pieces of 1 MiB, for which there is no room. A small archive might fit into free memory.
    with pytest.raises(ValidationFailed, match="16777216 bytes of address space"):
        in_child(good_zip(method=0, data=bytes(2**22)), folder, mebibytes=16)
    with pytest.raises(StoreUnavailable):
        in_child(good_tar_gz(), folder.parent / "absent")
