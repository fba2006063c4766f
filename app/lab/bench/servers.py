"""The servers that a benchmark compares, each a process of its own on a port of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

#: What every server calls its base model.
BASE_NAME = "base"

_ROOT = Path(__file__).resolve().parents[2]
_START_S = 600
_STOP_S = 60
_POLL_S = 0.5


class ServerFailed(RuntimeError):
    """A server ended, or did not become ready; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        name: ``tenora``, ``vllm``, ``peft`` or ``base``.
        port: on 127.0.0.1.
        pid: of the API process; engines are its children.
        headers: what a request needs whose adapter has none of its own.
        adapter_headers: adapter name -> what its requests need: the key of the tenant that it belongs to.
        admin_headers: what a call to the admin API needs; empty where there is none.
        only_base: whether requests name the base model, whatever adapter they are meant for.
    """

    name: str
    port: int
    pid: int
    headers: dict[str, str] = field(default_factory=dict)
    adapter_headers: dict[str, dict[str, str]] = field(default_factory=dict)
    admin_headers: dict[str, str] = field(default_factory=dict)
    only_base: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def headers_for(self, adapter: str | None) -> dict[str, str]:
        """The headers of a request for an adapter, or for the base model (None)."""
        return self.headers if adapter is None else self.adapter_headers.get(adapter, self.headers)

    def model_for(self, adapter: str | None) -> str:
        """What a request for an adapter names, or one for the base model (None)."""
        return BASE_NAME if adapter is None or self.only_base else adapter

    def cpu_s(self) -> float:
        """User and system seconds of the API process so far, without its children.

        Raises:
            ServerFailed: it has ended.
        """
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except FileNotFoundError:
            raise ServerFailed(f"{self.name} has ended") from None
        # proc(5): utime and stime are fields 14 and 15; the second, the name, may hold spaces but ends the last ")".
        fields = status.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self) -> int:
        """Largest resident memory so far of the server's processes, pages that they share counted in each."""
        # Each server leads a process group of its own; VmHWM is the peak, in KiB.
        folders = (folder for folder in Path("/proc").iterdir() if folder.name.isdecimal())
        return sum(_peak_bytes(folder) for folder in folders if _group(folder) == self.pid)


def _group(folder: Path) -> int | None:
    # proc(5): the process group is field 5. A process may end while it is looked at.
    with suppress(OSError):
        return int((folder / "stat").read_text().rpartition(")")[2].split()[2])
    return None


def _peak_bytes(folder: Path) -> int:
    with suppress(OSError):
        lines = (folder / "status").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return 0


def free_port() -> int:
    """A port that nothing listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**settings: str) -> dict[str, str]:
    """This process's environment with these settings, offline.

    Of Tenora's own settings only the engine's pass: a benchmark must never meet a database or store in use.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith("TENORA_") or name.upper().startswith("TENORA_ENGINE__")
    }
    # No proxy stands before a server that is measured; and its rivals write no access log either.
    own = {"TENORA_DRAIN_SECONDS": "0", "TENORA_LOG__ACCESS": "false"}
    return inherited | {"HF_HUB_OFFLINE": "1"} | own | settings


def run_module(*arguments: str, env: Mapping[str, str]) -> str:
    """Run ``python -m ...`` to its end and return what it printed.

    Raises:
        ServerFailed: it failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=_ROOT, env=dict(env), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServerFailed(f"{' '.join(arguments[:2])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def running(
    name: str, arguments: list[str], *, port: int, ready: str, env: Mapping[str, str], log: Path
) -> Iterator[Server]:
    """Start ``python -m ...``, wait until ``ready`` (a path) answers 200, and end it afterwards.

    Raises:
        ServerFailed
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=_ROOT,
            env=dict(env),
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group to end, but no session of its own: Linux would schedule each session as one task per core, and who
            # is idle most of the time would wait up to seconds for its turn (sched_autogroup).
            process_group=0,
        )
    try:
        server = Server(name, port, process.pid)
        _wait_ready(server, process, ready, log)
        yield server
    finally:
        _end(process)


def _wait_ready(server: Server, process: subprocess.Popen[bytes], ready: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    with httpx.Client(base_url=server.url, trust_env=False, timeout=10) as http:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServerFailed(f"{server.name} ended with {process.returncode}:\n{_tail(log)}")
            # Until it listens there is nothing to connect to.
            with suppress(httpx.TransportError):
                if http.get(ready).is_success:
                    return
            time.sleep(_POLL_S)
    raise ServerFailed(f"{server.name} was not ready after {_START_S} s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-3000:]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # An engine must not outlive its server and disturb the next measurement.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
