"""The pictures in docs/pictures are those that the journeys take, and docs/console.md shows each of them."""

import re
import struct

import pytest

from tests.support.console_pictures import FOLDER, HEIGHT, MAX_BYTES, PICTURES, WIDTH
from tests.support.pages import read

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: Size in pixels: the first bytes of the first chunk.
_SIZE = slice(16, 24)


def test_the_pictures_are_those_of_the_journeys() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.png" for name in PICTURES}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_shown_with_a_text(name: str) -> None:
    content = (FOLDER / f"{name}.png").read_bytes()
    assert content.startswith(_SIGNATURE)
    assert struct.unpack(">II", content[_SIZE]) == (WIDTH, HEIGHT)
    assert len(content) <= MAX_BYTES
    assert re.search(rf"!\[[A-Z][^\]]{{20,}}\]\(pictures/{name}\.png\)", read("docs/console.md"))
