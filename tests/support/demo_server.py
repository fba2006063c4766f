"""Demo server for published clients, and runs of programs against it."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from app.demo.publish import DemoAccess
from tests.support.server import START_S, TENORA, free_port, until

_PROGRAM_S = 600
_TRAINED_S = 600
_PRINTED = re.compile(r"# The web console: open (http://[0-9.:]+) and sign in with a key")
#: Isolate the clients from this machine's settings and switch off their telemetry.
_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
    "AI_SDK_LOG_WARNINGS": "false",
    "REDOCLY_TELEMETRY": "off",
    "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true",
}


@dataclass(frozen=True)
class DemoRun:
    """A running demo server: the content of its ``demo.json``, and the address that it printed."""

    access: DemoAccess
    printed_url: str

    def client(self, key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.printed_url, headers=headers, timeout=120, trust_env=False)


@contextmanager
def running_demo(home: Path) -> Iterator[DemoRun]:
    """Run ``tenora serve --demo``, as ``make serve`` does, until the block ends."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENORA_")}
    command = [TENORA, "serve", "--demo", "--port", str(free_port())]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=clean | {"TENORA_HOME": str(home), "TENORA_DRAIN_SECONDS": "0"}, stdout=log, stderr=log
        )
        try:
            yield _started(process, home)
        finally:
            left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            _, alive = psutil.wait_procs(left, timeout=30)
            assert not alive, f"left running: {alive}"


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run a demo server and return its connection settings as environment variables."""
    with running_demo(tmp_path_factory.mktemp("clients-home")) as run:
        variables = {
            "TENORA_URL": f"{run.access.base_url}/v1",
            "TENORA_KEY": run.access.tenants["pricing"].key,
            "TENORA_MODEL": "pricing",
        }
        yield variables | _QUIET


def _started(process: subprocess.Popen[bytes], home: Path) -> DemoRun:
    """Wait until the demo has published its adapters and printed its address."""
    log = home / "server.log"

    def printed() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        return _PRINTED.search(log.read_text(encoding="utf-8"))

    until(lambda: printed() is not None, _TRAINED_S + START_S)
    address = printed()
    assert address is not None
    access = DemoAccess.model_validate_json((home / "demo.json").read_text(encoding="utf-8"))
    return DemoRun(access, address[1])


def succeeds(command: list[str | Path], variables: dict[str, str], folder: Path) -> str:
    """Run a program in a folder, and return its output.

    Args:
        variables: its environment, in addition to the few variables that every program gets.
    """
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    done = subprocess.run(
        command, env=kept | variables, capture_output=True, text=True, timeout=_PROGRAM_S, cwd=folder, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
