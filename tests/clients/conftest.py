"""One demo server for all clients."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.server import START_S, TENORA, free_port, until

_TRAINED_S = 600
#: Isolate the clients from this machine's settings and switch off their telemetry.
_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
    "AI_SDK_LOG_WARNINGS": "false",
}


@dataclass(frozen=True, slots=True)
class DemoServer:
    """Running ``tenora server serve --demo``.

    Attributes:
        home: its HOME, with the demo's models.
        access: content of its ``demo.json``.
    """

    home: Path
    access: dict[str, Any]

    @property
    def url(self) -> str:
        return str(self.access["base_url"])

    @property
    def key(self) -> str:
        """Key of the tenant ``pricing``."""
        return str(self.access["tenants"]["pricing"]["key"])


@pytest.fixture(scope="session")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoServer]:
    home = tmp_path_factory.mktemp("clients-home")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENORA_")}
    command = [TENORA, "server", "serve", "--demo", "--port", str(free_port())]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=clean | {"TENORA_HOME": str(home), "TENORA_DRAIN_SECONDS": "0"}, stdout=log, stderr=log
        )
        try:
            yield DemoServer(home, _access(process, home))
        finally:
            left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            _, alive = psutil.wait_procs(left, timeout=30)
            assert not alive, f"left running: {alive}"


@pytest.fixture(scope="session")
def demo(demo_server: DemoServer) -> dict[str, str]:
    """Settings of a published client as environment variables."""
    server = {"TENORA_URL": f"{demo_server.url}/v1", "TENORA_KEY": demo_server.key, "TENORA_MODEL": "pricing"}
    return server | _QUIET


def _access(process: subprocess.Popen[bytes], home: Path) -> dict[str, Any]:
    """Read the access data that the demo writes after it has published its adapters."""
    found = home / "demo.json"

    def written() -> bool:
        assert process.poll() is None, (home / "server.log").read_text(encoding="utf-8")
        return found.exists()

    until(written, _TRAINED_S + START_S)
    return dict(json.loads(found.read_text(encoding="utf-8")))
