"""Published clients against a demo server: a tool loop, a second turn and structured output.

Each client builds its requests itself and runs in a separate environment, see ``install.py``. Client and server talk
directly, without a proxy.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.clients.install import FOLDER, HERE, node, python_of
from tests.support.server import START_S, TENORA, free_port, until

PYTHON = ("openai", "openai_agents", "anthropic", "litellm", "langchain", "pydantic_ai", "llama_index")
NODE = ("openai", "langchain", "ai")
_CLIENT_S = 600
_TRAINED_S = 600
#: Isolate the clients from this machine's settings and switch off their telemetry.
_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
    "AI_SDK_LOG_WARNINGS": "false",
}


@pytest.fixture(scope="session")
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


def succeeds(command: list[str | Path], variables: dict[str, str]) -> None:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    done = subprocess.run(
        command, env=kept | variables, capture_output=True, text=True, timeout=_CLIENT_S, cwd=FOLDER, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("client", PYTHON)
def test_a_python_client(demo: dict[str, str], client: str) -> None:
    succeeds([python_of(client), "-I", HERE / "python" / f"{client}_client.py"], demo)


@pytest.mark.parametrize("client", NODE)
def test_a_node_client(demo: dict[str, str], client: str, tmp_path: Path) -> None:
    # Node resolves packages relative to the script, not to the working directory.
    script = FOLDER / "node" / f"{client}.mjs"
    script.write_text((HERE / "node" / script.name).read_text(encoding="utf-8"), encoding="utf-8")
    succeeds([node(), script], demo)
