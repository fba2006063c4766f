"""The pictures in docs/recordings show the recorder's commands, and nothing of the machine that recorded them."""

import re

import pytest

from deploy.docs.recordings import OUT, RECORDINGS, Recording, Screen, picture
from tests.support.pages import read
from tests.support.recordings import lines_of

#: Home and work folders, and places for temporary files.
PATHS = re.compile(r"/(?:home|root|work|tmp|var|opt|usr|Users|private)/")


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_a_picture_has_its_command_and_no_secret(recording: Recording) -> None:
    path = OUT / f"{recording.name}.svg"
    assert f"$ {recording.shown}" in lines_of(path)
    text = path.read_text()
    assert "tnr_" not in text
    assert not PATHS.search(text)
    assert "url(http" not in text
    assert f"](recordings/{recording.name}.svg)" in read("docs/cli.md")


def test_every_picture_has_its_recording() -> None:
    assert {path.name for path in OUT.iterdir()} == {f"{recording.name}.svg" for recording in RECORDINGS}


def test_a_screen_shows_the_last_state_of_a_line() -> None:
    screen = Screen(("Sending",))
    screen.feed(
        "\x1b[?25lSending 1\r\x1b[2KSending 2\r\n\r\x1b[1A\x1b[2Kone\r\ntop\r\nend\r\x1b[2K\x1b[1A\x1b[2Knew\r\n"
    )
    assert screen.text() == "Sending 2\none\nnew"


def test_a_picture_can_be_read(tmp_path) -> None:
    output = "\x1b[1;31merror: \x1b[0ma < b & c\r\n"
    (tmp_path / "x.svg").write_text(picture(RECORDINGS[0], output))
    assert lines_of(tmp_path / "x.svg")[-1] == "error: a < b & c"
