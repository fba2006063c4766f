"""``tenora engines demo``: the demo's models on two engine replicas, with one server in front of them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rich.progress import Progress

from app.cli.demo import demo_settings
from app.cli.registry import prepare
from app.cli.setup import report_failures
from app.demo.train import ensure_demo
from app.settings import Settings
from tenora_client.cli.output import USAGE, fail, note, stderr

_REPLICAS = "2"
_START_S, _STOP_S, _POLL_S = 300.0, 90.0, 0.2


def run_demo(settings: Settings) -> None:
    """Train the demo's models, start two replicas and a server, and stop the replicas after the server."""
    from app.ray.cluster import started_on
    from app.ray.library import require_ray

    if settings.base_model:
        fail("The demo trains and serves a small base model. Unset TENORA_BASE_MODEL.", USAGE)
    with report_failures():
        require_ray()
        prepare(settings)
        with Progress(console=stderr(), transient=True) as progress:
            ensure_demo(settings.home, progress)
    command, environment = str(Path(sys.executable).parent / "tenora"), _environment(settings)
    note("Starting two engine replicas. This takes about a minute.")
    # A Ctrl-C of the terminal must reach the server first, so that its last requests are answered.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    engines = subprocess.Popen(
        [command, "engines", "up", "--replicas", _REPLICAS], env=environment, start_new_session=True
    )
    try:
        ends = time.monotonic() + _START_S
        while started_on(settings.home) is None:
            if engines.poll() is not None or time.monotonic() > ends:
                fail("The engine replicas could not start. The lines above have the reason.")
            time.sleep(_POLL_S)
        serve = [command, "server", "serve", "--demo", "--port", str(settings.port)]
        _run(serve, environment | {"TENORA_RAY__ADDRESS": "local"})
    finally:
        engines.terminate()
        engines.wait(_STOP_S)


def _run(command: list[str], environment: dict[str, str]) -> None:
    """Run the server to its end. A signal to this process ends the server first."""
    with subprocess.Popen(command, env=environment) as server:
        # The terminal sends SIGINT to the server as well.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        server.wait()


def _environment(settings: Settings) -> dict[str, str]:
    """Return the environment of the replicas and the server, with the demo's defaults."""
    engine = demo_settings(settings).engine
    return dict(os.environ) | {
        "TENORA_HOME": str(settings.home.resolve()),
        "TENORA_ENGINE__DTYPE": engine.dtype,
        "TENORA_ENGINE__EXTRA_ARGS": json.dumps(engine.extra_args),
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }
