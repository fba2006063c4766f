"""Commands under benchmark that end by themselves, with their time and peak memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from app.lab.bench.servers import ServerFailed, environment, peak_bytes

_ROOT = Path(__file__).resolve().parents[3]
_POLL_S = 0.1
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Finished:
    """Time and peak memory of a command with its children. Shared pages count in each process."""

    seconds: float
    peak_bytes: int


class Command:
    """Running command. See :func:`started`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log
        self._began = time.perf_counter()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> Finished:
        """Wait for the end.

        Raises:
            ServerFailed: the command failed. The message has the end of its log.
        """
        peak = 0
        while not self.has_ended:
            # Peaks are read until the end, since a process takes its own along.
            peak = max(peak, peak_bytes(self._process.pid))
            time.sleep(_POLL_S)
        seconds = time.perf_counter() - self._began
        if self._process.returncode:
            text = self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise ServerFailed(f"A command ended with exit status {self._process.returncode}:\n{text}")
        return Finished(seconds, peak)


@contextmanager
def started(arguments: list[str], *, log: Path, settings: Mapping[str, str] = _NONE) -> Iterator[Command]:
    """Start ``python -m ...``, and kill what is left of it at the end of the block.

    Args:
        settings: variables of its environment. See :func:`app.lab.bench.servers.environment`.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=_ROOT,
            env=environment(**settings),
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # as for servers
        )
    try:
        yield Command(process, log)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(arguments: list[str], *, log: Path, settings: Mapping[str, str] = _NONE) -> Finished:
    """Run ``python -m ...`` to its end.

    Raises:
        ServerFailed: the command failed.
    """
    with started(arguments, log=log, settings=settings) as command:
        return command.wait()
