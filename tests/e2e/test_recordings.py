"""The recorder makes the pictures of docs/recordings from a demo server."""

from pathlib import Path

import pytest

from app.demo.train import Demo
from deploy.docs.recordings import OUT, RECORDINGS, demo_server, record_all
from tests.support.recordings import lines_of

pytestmark = pytest.mark.slow

#: Words that each picture must have, as those in the repository.
SHOWN = {
    "push": ["Uploading", "Checking", "state           ready", "passed", "tenora adapters promote quotes@1"],
    "validate": ["use_dora", "bias", "rank 256", "would refuse adapters/refused for 4 reasons"],
    "chat": ["> Can you explain sugar?", " pricing ", " base ", "> /quit"],
}


def test_the_demo_is_recorded(trained_demo: Demo, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "demo").symlink_to(trained_demo.base.parent)
    with demo_server(home):
        record_all(tmp_path / "out", home)
    for folder in (OUT, tmp_path / "out"):
        for recording in RECORDINGS:
            lines = lines_of(folder / f"{recording.name}.svg")
            assert f"$ {recording.shown}" in lines
            assert [words for words in SHOWN[recording.name] if words not in "\n".join(lines)] == []
