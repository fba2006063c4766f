"""Record commands of the client as pictures for docs/cli.md: a push, a validation and a chat against the demo.

    .venv/bin/python -m deploy.docs.recordings            # or: make recordings

It starts a demo server with a new HOME, runs the real commands in a pseudo-terminal, and writes
``docs/recordings/NAME.svg``. ``--home HOME`` takes the demo server that runs with this HOME. The push leaves a version
of ``quotes`` there, in the tenant ``pricing``.
"""

import argparse
import errno
import fcntl
import io
import json
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

OUT = Path(__file__).resolve().parents[2] / "docs" / "recordings"
COLUMNS, ROWS = 100, 40
#: Seconds: for the training and the start of the demo, and for a command.
_START_S, _COMMAND_S = 900, 120
_PROMPT = b"> "
_TENORA = str(Path(sys.executable).parent / "tenora")
#: Sequences of a terminal that move the cursor or erase. All others are colors, or change modes.
_MOVES = re.compile(r"(\r\n|\r|\x1b\[2K|\x1b\[1A)")
_MODES = re.compile(r"\x1b\[\?\d+[hl]")
#: The picture must not load anything, and a viewer may have the font or not.
_FONT_FACES = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
_FORMAT = _FONT_FACES.sub("", CONSOLE_SVG_FORMAT)


@dataclass(frozen=True)
class Recording:
    """Command to record.

    Attributes:
        command: its words after ``tenora``.
        lines: lines to type, each once the command asks.
        keeps: beginning of a line that the picture keeps after the command erased it, such as a progress bar.
        exit_code: exit code that the command must have.
    """

    name: str
    command: tuple[str, ...]
    lines: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    exit_code: int = 0

    @property
    def shown(self) -> str:
        """The command line as a user types it."""
        return shlex.join(("tenora", *self.command))


RECORDINGS = (
    Recording(
        "push",
        ("adapters", "push", "adapters/quotes", "--tenant", "pricing", "--adapter", "quotes", "--alias", "candidate"),
        keeps=("Uploading", "Checking"),
    ),
    Recording("validate", ("adapters", "validate", "adapters/refused", "--tenant", "pricing"), exit_code=1),
    Recording(
        "chat",
        ("chat", "pricing", "--compare", "base"),
        lines=("Can you explain sugar?", "What is coffee?", "/quit"),
    ),
)


class Screen:
    """Lines of a terminal: what a command printed, with the last state of lines that it wrote again.

    Args:
        keeps: beginnings of lines that stay after they are erased.
    """

    def __init__(self, keeps: Sequence[str] = ()) -> None:
        self._keeps, self._kept = keeps, dict[str, str]()
        self._lines, self._row = [""], 0

    def feed(self, output: str) -> None:
        """Print the output of a command."""
        for piece in _MOVES.split(_MODES.sub("", output)):
            if piece == "\r\n":
                self._row += 1
                if self._row == len(self._lines):
                    self._lines.append("")
            elif piece == "\x1b[1A":
                self._row -= 1
            elif piece == "\x1b[2K":
                self._erase()
            elif piece != "\r":
                self._lines[self._row] += piece

    def text(self) -> str:
        """Return the lines, colors included."""
        return "\n".join((*self._kept.values(), *self._lines)).rstrip("\n")

    def _erase(self) -> None:
        line, self._lines[self._row] = self._lines[self._row], ""
        for beginning in self._keeps:
            if line.startswith(beginning):
                self._kept[beginning] = line


def record(recording: Recording, folder: Path, variables: dict[str, str]) -> str:
    """Run a command in a pseudo-terminal, and return its output.

    Args:
        folder: folder in which the command runs.

    Raises:
        RuntimeError: the command ended with another exit code, or did not end.
    """
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    own = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PATH": os.environ["PATH"], "HOME": str(folder)}
    process = subprocess.Popen(
        [_TENORA, *recording.command],
        stdin=child,
        stdout=child,
        stderr=child,
        cwd=folder,
        env=own | variables,
        start_new_session=True,
    )
    os.close(child)
    watchdog = Timer(_COMMAND_S, process.kill)
    watchdog.start()
    try:
        output = _conversation(parent, recording.lines)
        code = process.wait()
    finally:
        watchdog.cancel()
        os.close(parent)
    if code != recording.exit_code:
        raise RuntimeError(f"`{recording.shown}` ended with {code}:\n{output}")
    return output


def _conversation(terminal: int, lines: Sequence[str]) -> str:
    """Read the terminal until it ends, and type a line after each prompt."""
    output, left = b"", list(lines)
    while piece := _read(terminal):
        output += piece
        if left and output.endswith(_PROMPT):
            os.write(terminal, f"{left.pop(0)}\n".encode())
    return output.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError as error:
        if error.errno != errno.EIO:  # Linux ends a terminal without writers with this error.
            raise
        return b""


def picture(recording: Recording, output: str) -> str:
    """Return the SVG of a command line and its output."""
    screen = Screen(recording.keeps)
    screen.feed(output)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold green"), (recording.shown, "bold")), soft_wrap=True)
    console.print(Text.from_ansi(screen.text()), highlight=False)
    return console.export_svg(title="tenora", code_format=_FORMAT, unique_id=f"tenora-{recording.name}")


def record_all(out: Path, home: Path) -> None:
    """Record all commands against the demo server of a HOME, with the keys that ``demo.json`` has."""
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_adapters(home / "demo" / "adapters" / "pricing", folder / "adapters")
        for recording in RECORDINGS:
            output = record(recording, folder, {"TENORA_HOME": str(home)})
            (out / f"{recording.name}.svg").write_text(picture(recording, output))


def _make_adapters(good: Path, folder: Path) -> None:
    """Copy an adapter twice: unchanged, and with a config that the server refuses for several reasons."""
    shutil.copytree(good, folder / "quotes")
    shutil.copytree(good, folder / "refused")
    path = folder / "refused" / "adapter_config.json"
    config = json.loads(path.read_text()) | {"r": 256, "use_dora": True, "bias": "all"}
    path.write_text(json.dumps(config))


@contextmanager
def demo_server(home: Path) -> Iterator[None]:
    """Run ``tenora server serve --demo`` on a free port.

    Raises:
        RuntimeError: it did not start. The message has its log.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENORA_")}
    command = [_TENORA, "server", "serve", "--demo", "--port", "0"]
    log = home / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=clean | {"TENORA_HOME": str(home)}, stdout=file, stderr=file)
    try:
        # The server writes the file once the demo's adapters are published.
        _wait(lambda: (home / "demo.json").exists() or process.poll() is not None)
        if process.poll() is not None or not (home / "demo.json").exists():
            raise RuntimeError(f"The demo did not start:\n{log.read_text()}")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record commands of the client for docs/cli.md.")
    parser.add_argument("--home", type=Path, help="HOME of a demo server that runs; default: start one")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the pictures")
    chosen = parser.parse_args()
    if chosen.home:
        record_all(chosen.out, chosen.home.resolve())
        return
    with tempfile.TemporaryDirectory() as name, demo_server(Path(name)):
        record_all(chosen.out, Path(name))


if __name__ == "__main__":
    main()
