"""Demo server for published clients, and runs of programs against it."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.server import START_S, TENORA, free_port, until

_PROGRAM_S = 600
_TRAINED_S = 600
#: Isolate the clients from this machine's settings and switch off their telemetry.
_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
    "AI_SDK_LOG_WARNINGS": "false",
    "REDOCLY_TELEMETRY": "off",
    "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true",
}


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run a demo server and return its connection settings as environment variables."""
    home = tmp_path_factory.mktemp("clients-home")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENORA_")}
    command = [TENORA, "serve", "--demo", "--port", str(free_port())]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=clean | {"TENORA_HOME": str(home), "TENORA_DRAIN_SECONDS": "0"}, stdout=log, stderr=log
        )
        try:
            access = _access(process, home)
            variables = {
                "TENORA_URL": f"{access['base_url']}/v1",
                "TENORA_KEY": access["tenants"]["pricing"]["key"],
                "TENORA_MODEL": "pricing",
            }
            yield variables | _QUIET
        finally:
            left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            _, alive = psutil.wait_procs(left, timeout=30)
            assert not alive, f"left running: {alive}"


def _access(process: subprocess.Popen[bytes], home: Path) -> dict[str, object]:
    """Read the access data that the demo writes after it has published its adapters."""
    found = home / "demo.json"

    def written() -> bool:
        assert process.poll() is None, (home / "server.log").read_text(encoding="utf-8")
        return found.exists()

    until(written, _TRAINED_S + START_S)
    return dict(json.loads(found.read_text(encoding="utf-8")))


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
