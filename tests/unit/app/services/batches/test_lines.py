"""Lines of input files: their places, and memory that does not grow with them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.batches import LinePlace
from app.domain.errors import InvalidRequest
from app.services.batches.lines import LineReader, RawLine, parse_line

MOST = 40


def read(path: Path, content: bytes) -> list[RawLine]:
    path.write_bytes(content)
    reader = LineReader(path, most_bytes=MOST)
    lines = []
    while slab := reader.slab():
        lines += slab
    reader.close()
    return lines


@given(content=st.lists(st.sampled_from([b"a", b"bb ", b" ", b"\n", b"\r\n", b"x" * 41, b"y" * 90, b"\x00"])))
def test_lines_are_those_between_newlines(tmp_path_factory: pytest.TempPathFactory, content: list[bytes]) -> None:
    whole = b"".join(content)
    lines = read(tmp_path_factory.mktemp("lines") / "file", whole)
    kept = [(number, line) for number, line in enumerate(whole.split(b"\n"), 1) if line.strip(b" \t\r\n")]
    assert [line.place.number for line in lines] == [number for number, _ in kept]
    for line, (_, expected) in zip(lines, kept, strict=True):
        place = line.place
        if line.content is None:
            assert len(expected.rstrip(b" \r")) > MOST or len(expected) > MOST
        else:
            assert line.content == expected.rstrip(b" \t\r\n")
            assert whole[place.offset : place.offset + place.length] == line.content


def test_a_line_that_is_too_long_is_skipped(tmp_path: Path) -> None:
    lines = read(tmp_path / "file", b"a\n" + b"x" * 1000 + b"\nb")
    assert lines == [
        RawLine(LinePlace(1, 0, 1), b"a"),
        RawLine(LinePlace(2, 2, 1001), None),
        RawLine(LinePlace(3, 1003, 1), b"b"),
    ]


def test_a_slab_has_64_lines_or_a_mebibyte(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a\n" * 100 + b"x" * 2**20 + b"\n" + b"b\n")
    reader = LineReader(path, most_bytes=2**21)
    assert [len(reader.slab()) for _ in range(4)] == [64, 37, 1, 0]
    reader.close()


@pytest.mark.parametrize("large", [False, True])
def test_a_line_is_parsed_and_its_other_fields_are_ignored(large: bool) -> None:
    content = {"custom_id": "x" * 512, "method": "POST", "url": "/generate", "body": {"inputs": "hi"}, "more": 1}
    line = parse_line(json.dumps(content).encode(), endpoint="/generate", large=large)
    assert (line.custom_id, line.body) == ("x" * 512, {"inputs": "hi"})
    with pytest.raises(InvalidRequest, match=r"custom_id is 'x+\.\.\.'; it must be a text of 1 to 512 characters"):
        parse_line(json.dumps(content | {"custom_id": "x" * 513}).encode(), endpoint="/generate", large=large)
