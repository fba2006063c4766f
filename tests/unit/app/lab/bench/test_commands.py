"""Commands under benchmark that end by themselves."""

import psutil
import pytest

from app.lab.bench import commands
from app.lab.bench.servers import ServerFailed

#: A module of the standard library that takes a statement, and prints the time that it takes.
TIMED = ["timeit", "-n", "1", "-r", "1"]


def test_a_command_has_its_time_and_peak_memory(tmp_path):
    finished = commands.run([*TIMED, "import time; bytearray(2**26); time.sleep(0.5)"], log=tmp_path / "log")
    assert finished.seconds >= 0.5
    assert finished.peak_bytes > 2**26


def test_a_failed_command_is_told_with_its_log(tmp_path):
    with pytest.raises(ServerFailed, match="ZeroDivisionError"):
        commands.run([*TIMED, "1 / 0"], log=tmp_path / "log")


def test_what_is_left_of_a_command_is_killed(tmp_path):
    with commands.started([*TIMED, "import time; time.sleep(600)"], log=tmp_path / "log") as command:
        assert not command.has_ended
    assert command.has_ended
    assert not [process for process in psutil.process_iter(["cmdline"]) if "time.sleep(600)" in _text(process)]


def _text(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or ())
