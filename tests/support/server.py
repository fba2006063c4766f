"""A whole Tenora in a separate process: `tenora server init`, `tenora server serve`, the real engine."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.fresh_metrics import fresh_metrics

START_S = 600
#: More tokens than a step usually has in the tests.
_STEP_TOKENS = 256
TENORA = str(Path(sys.executable).parent / "tenora")


@dataclass
class Server:
    """Running server and its platform key."""

    url: str
    admin_key: str
    process: subprocess.Popen[bytes]
    home: Path

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=120)

    def tenant(self, slug: str, *, scopes: tuple[str, ...] = ("inference", "adapters:read", "adapters:write")) -> str:
        """Create the tenant if it does not exist, and return a new key of it."""
        with self.client(self.admin_key) as admin:
            answer = admin.post("/admin/tenants", json={"slug": slug})
            assert answer.status_code in {201, 409}, answer.text
            answer = admin.post(f"/admin/tenants/{slug}/keys", json={"name": "test", "scopes": list(scopes)})
            assert answer.status_code == 201, answer.text
            return str(answer.json()["key"])

    def publish(self, tenant: str, adapter: str, directory: Path) -> httpx.Response:
        with self.client(self.admin_key) as admin, contextlib.ExitStack() as files:
            parts = {
                name: files.enter_context((directory / name).open("rb"))
                for name in ("adapter_config.json", "adapter_model.safetensors")
            }
            return admin.post(f"/admin/tenants/{tenant}/adapters/{adapter}/versions", files=parts)

    def engine_processes(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "VLLM::" in " ".join(_command(child))]

    def fork_server(self) -> psutil.Process:
        """Return the fork server, the parent of the engine's processes."""
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if "tenora::forkserver" in child.cmdline())

    def metric(self, name: str) -> float:
        """Return the current value of a metric without labels."""
        with self.client() as client:
            lines = fresh_metrics(client).splitlines()
        return next(float(line.split()[-1]) for line in lines if line.split(" ")[0] == name)

    def is_ready(self) -> bool:
        with self.client() as client:
            return client.get("/health/ready").status_code == 200

    def wait_ready(self) -> None:
        until(self._has_started, START_S)

    def wait_restarted(self) -> None:
        """Wait until an engine that was killed has been replaced."""
        # The readiness check may be cached for a second, so the server may look ready although its engine is dead.
        until(lambda: not self.is_ready(), 5)
        self.wait_ready()

    def _has_started(self) -> bool:
        assert self.process.poll() is None, "the server ended"
        try:
            return self.is_ready()
        except httpx.TransportError:
            return False


def _command(process: psutil.Process) -> list[str]:
    """Return the command line; empty for a zombie process."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def processes_of(home: Path) -> list[psutil.Process]:
    """Find all processes with this HOME and their descendants, wherever they are in the process tree now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("TENORA_HOME") == str(home):
                found.append(process)
    return found


def every_step_size(server: Server, key: str, model: str) -> None:
    """Let the engine run a step of every size once, before its memory is measured.

    On a CPU, oneDNN caches code for each matrix shape that it has met: 1,024 entries of a quarter of a MiB or more.
    Random traffic would meet the rare shapes hours later.
    """
    chance = random.Random(7)
    with server.client(key) as client:
        for tokens in range(1, _STEP_TOKENS + 1):
            body = {"model": model, "prompt": [chance.randrange(10, 200) for _ in range(tokens)], "max_tokens": 1}
            assert client.post("/v1/completions", json=body).status_code == 200


def until(condition: Any, timeout_s: float) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s} s")
        time.sleep(0.02)


def environment(home: Path, base: Path, **settings: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENORA_")}
    own = {"TENORA_HOME": str(home), "TENORA_BASE_MODEL": str(base), "TENORA_BASE_MODEL_NAME": "demo"}
    # The server has no proxy in front of it. Metrics are public, as in the demo, so they must be safe to publish.
    return clean | own | {"TENORA_DRAIN_SECONDS": "0", "TENORA_METRICS_KEY_REQUIRED": "false"} | settings


@contextlib.contextmanager
def running(home: Path, base: Path, **settings: Any) -> Iterator[Server]:
    """Set up a server, start it on a free port, and stop it with all its processes at the end."""
    with serving(home, base, set_up(home, base, **settings), **settings) as server:
        yield server


def set_up(home: Path, base: Path, *, program: Sequence[str] = (TENORA,), **settings: str) -> str:
    """Create the registry and return a platform key."""
    init = [*program, "init", "--json"]
    variables = environment(home, base, **settings)
    made = subprocess.run(init, env=variables, check=True, capture_output=True, text=True)
    return str(json.loads(made.stdout)["key"])


@contextlib.contextmanager
def serving(
    home: Path,
    base: Path,
    admin_key: str,
    *,
    port: int | None = None,
    program: Sequence[str] = (TENORA,),
    **settings: str,
) -> Iterator[Server]:
    """Start a server that is already set up, and stop it with all its processes at the end.

    Args:
        program: command line of ``tenora``, for example of another release.
    """
    port = port or free_port()
    log = (home / "server.log").open("ab")
    process = subprocess.Popen(
        [*program, "serve", "--port", str(port)],
        env=environment(home, base, **settings),
        stdout=log,
        stderr=log,
        # A test may send a signal to the whole process group.
        start_new_session=True,
    )
    server = Server(f"http://127.0.0.1:{port}", admin_key, process, home)
    try:
        server.wait_ready()
        yield server
    finally:
        left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        log.close()
        _, alive = psutil.wait_procs(left, timeout=30)
        assert not alive, f"left running: {alive}"


def together(folder: Path, database_url: str) -> dict[str, str]:
    """Return shared settings for servers that form one cluster. Each server has a separate HOME."""
    return {
        "TENORA_DATABASE_URL": database_url,
        "TENORA_STORE_URL": f"file://{folder}/blobs",
        "TENORA_PEPPER": "the same for all servers of one registry",
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
