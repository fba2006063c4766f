"""Servers under benchmark, each a separate process on a separate port."""

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

#: Name of the base model on every server.
BASE_NAME = "base"

_ROOT = Path(__file__).resolve().parents[3]
_START_S = 600
_STOP_S = 60
_POLL_S = 0.5


class ServerFailed(RuntimeError):
    """A server ended or did not become ready. The message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """Running server.

    Attributes:
        name: ``tenora``, ``vllm``, ``peft`` or ``base``.
        port: port on 127.0.0.1.
        pid: process id of the API process. Engines are its children.
        headers: headers of requests for adapters without an entry in ``adapter_headers``.
        adapter_headers: headers by adapter name, with the key of the owning tenant.
        admin_headers: headers of admin API calls, empty if there is no such API.
        only_base: True to send all requests to the base model.
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
        """Headers of a request for an adapter, or for the base model (None)."""
        return self.headers if adapter is None else self.adapter_headers.get(adapter, self.headers)

    def model_for(self, adapter: str | None) -> str:
        """Model name of a request for an adapter, or for the base model (None)."""
        return BASE_NAME if adapter is None or self.only_base else adapter

    def cpu_s(self) -> float:
        """User and system CPU seconds of the API process so far, without its children.

        Raises:
            ServerFailed: the process has ended.
        """
        try:
            return _cpu_s(Path(f"/proc/{self.pid}"))
        except FileNotFoundError:
            raise ServerFailed(f"{self.name} has ended.") from None

    def children_cpu_s(self) -> float:
        """User and system CPU seconds so far of the server's other processes that run, the engine's above all."""
        total = 0.0
        for folder in _processes(self.pid):
            if folder.name != str(self.pid):
                with suppress(OSError):  # it may have ended
                    total += _cpu_s(folder)
        return total

    def peak_bytes(self) -> int:
        """Peak resident memory of the server's processes. Shared pages count in each process."""
        return peak_bytes(self.pid)

    def reset_peak(self) -> None:
        """Begin a new measurement of the peak memory."""
        for folder in _processes(self.pid):
            # proc(5): 5 resets the peak to the present size. A process may have ended.
            with suppress(OSError):
                (folder / "clear_refs").write_text("5")

    def kill(self) -> None:
        """Kill the API process with SIGKILL, and wait until its engines have ended too.

        Raises:
            ServerFailed: a process outlived it.
        """
        processes = _processes(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + _STOP_S
        while any(map(_runs, processes)):
            if time.monotonic() >= deadline:
                raise ServerFailed(f"Engines of {self.name} ran {_STOP_S} s after it was killed.")
            time.sleep(_POLL_S)


def peak_bytes(pid: int) -> int:
    """Peak resident memory of a process with its descendants. Shared pages count in each process."""
    return sum(map(_peak_bytes, _processes(pid)))


def _processes(pid: int) -> list[Path]:
    """Return the folders of a process group's members and of their descendants, which may have other groups.

    The engine of Tenora runs in a separate session.
    """
    folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdecimal()]
    parents = {int(folder.name): _parent_and_group(folder) for folder in folders}
    found = {number for number, (_, group) in parents.items() if group == pid}
    while more := {number for number, (parent, _) in parents.items() if parent in found} - found:
        found |= more
    return [folder for folder in folders if int(folder.name) in found]


def _parent_and_group(folder: Path) -> tuple[int, int]:
    # proc(5): parent and process group are fields 4 and 5. A process may end during the read.
    with suppress(OSError):
        parent, group = (folder / "stat").read_text().rpartition(")")[2].split()[1:3]
        return int(parent), int(group)
    return 0, 0


def _runs(folder: Path) -> bool:
    """Return whether a thread of the process has yet to end. A thread closes its sockets last, after its memory."""
    with suppress(OSError):
        return any(_state(thread) not in "ZX" for thread in (folder / "task").iterdir())
    return False


def _state(folder: Path) -> str:
    # proc(5): the state is field 3; Z is a zombie. A thread that is no longer listed is dead, X.
    with suppress(OSError):
        return (folder / "stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def _cpu_s(folder: Path) -> float:
    # proc(5): utime and stime are fields 14 and 15. Field 2, the name, may contain spaces and ends at the last ")".
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_bytes(folder: Path) -> int:
    # VmHWM is the peak in KiB.
    with suppress(OSError):
        lines = (folder / "status").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return 0


def free_port() -> int:
    """Find a port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**settings: str) -> dict[str, str]:
    """Build a server's environment from this process's and these settings, offline.

    Of Tenora's settings only the engine's are inherited. A benchmark must never reach a production database or store.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith("TENORA_") or name.upper().startswith("TENORA_ENGINE__")
    }
    # No proxy precedes a benchmarked server, so it needs no drain. The rivals write no access log either.
    own = {"TENORA_DRAIN_SECONDS": "0", "TENORA_LOG__ACCESS": "false"}
    return inherited | {"HF_HUB_OFFLINE": "1"} | own | settings


def run_module(*arguments: str, env: Mapping[str, str]) -> str:
    """Run ``python -m ...`` to its end and return its output.

    Raises:
        ServerFailed: the module failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=_ROOT, env=dict(env), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServerFailed(f"{' '.join(arguments[:2])} ended with exit status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def running(
    name: str, arguments: list[str], *, port: int, ready: str, env: Mapping[str, str], log: Path
) -> Iterator[Server]:
    """Start ``python -m ...``, wait until the path ``ready`` answers 200, and stop the process afterwards.

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
            # A process group, so that the whole server can be killed, but no new session.
            # See docs/decisions/0040-no-sessions-for-benchmarked-servers.md.
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
                raise ServerFailed(f"{server.name} ended with exit status {process.returncode}:\n{_tail(log)}")
            # Connections fail until the server listens.
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
    # A surviving engine would disturb the next measurement.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
