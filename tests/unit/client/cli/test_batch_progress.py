"""Progress of a batch: one bar at a terminal, and its words."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenora_client.cli.batch_progress import duration
from tests.support.batch_server import BatchServer, batch_server

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_COLUMNS = 140


@contextmanager
def at_terminal(server: BatchServer, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the command with a terminal as its stderr; provide the process and the terminal's other side."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, _COLUMNS, 0, 0))
    variables = {**os.environ, "TENORA_URL": server.url, "TENORA_KEY": "tnr_key", "TERM": "xterm"}
    command = [sys.executable, "-m", "tenora_client", "batch", *arguments]
    process = subprocess.Popen(command, env=variables, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def shown_until(terminal: int, pattern: str) -> str:
    """Read what a terminal shows until it matches. It fails when the command ends first."""
    text = ""
    while not re.search(pattern, text):
        try:
            text += os.read(terminal, 2**16).decode()
        except OSError:
            pytest.fail(f"The command ended with {text!r}")
        text = _ESCAPES.sub("", text)
    return text


def rest(terminal: int) -> str:
    """Read what a terminal shows until the command ends."""
    text = ""
    while True:
        try:
            text += os.read(terminal, 2**16).decode()
        except OSError:
            return _ESCAPES.sub("", text)


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with batch_server() as server:
        yield server


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"prompt": "question {n}"}}\n' for n in range(20)))
    return path


def test_a_terminal_has_one_bar_that_grows(server: BatchServer, prompts: Path) -> None:
    server.limit = 8
    server.error_of = lambda custom_id: "Not this one." if custom_id == "line-3" else None
    with at_terminal(server, "run", str(prompts), "--model", "unit/a") as (process, terminal):
        shown_until(terminal, r"unit/a [^\r\n]*8/20 1 failed")
        server.limit = 15
        # The speed is known from the second look at lines that are done.
        shown_until(terminal, r"unit/a [^\r\n]*15/20 1 failed [\d,]+ tokens/s \d\d:\d\d left")
        server.limit = float("inf")
        told = rest(terminal)
        assert process.wait() == 1
    assert "19 of 20 lines have an answer" in told


def test_a_blocked_batch_says_why(server: BatchServer, prompts: Path) -> None:
    server.limit = 8
    with at_terminal(server, "run", str(prompts), "--model", "unit/a") as (_, terminal):
        shown_until(terminal, r"8/20")
        (batch,) = server.batches.values()
        batch["tenora"]["blocked"] = {"code": "tokens_per_day", "message": "tokens_per_day is used up."}
        shown_until(terminal, r"blocked: tokens_per_day is used up")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "00:00"), (65, "01:05"), (3599, "59:59"), (3909, "1:05:09"), (90000, "25:00:00")]
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
