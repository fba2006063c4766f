"""``tenora engines``: engine replicas on Ray Serve, behind any number of servers. They need the extra ``ray``."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.configuration import load_settings
from app.cli.engine_certificate import certificate
from app.cli.setup import report_failures
from app.domain.errors import EngineUnavailable
from app.settings import Settings, secret_setting_names
from app.settings_files import make_paths_absolute
from tenora_client.cli.connection import Json
from tenora_client.cli.output import USAGE, emit_json, emit_table, fail, note

if TYPE_CHECKING:
    from app.ray.snapshot import Snapshot

app = typer.Typer(no_args_is_help=True, help="Engine replicas on Ray Serve, behind any number of servers.")

app.command()(certificate)

_RANGE = re.compile(r"([0-9]{1,4})(?::([0-9]{1,4}))?", re.ASCII)
_COLUMNS = {
    "node": "node",
    "process": "pid",
    "state": "state",
    "slots": "slots",
    "used": "slots_used",
    "running": "running",
    "waiting": "waiting",
    "loads": "loads",
    "restarts": "restarts",
}
_STATUS_S = 10.0
#: As of the settings, which this command replaces.
_MOST = 1000


@app.command()
def up(
    replicas: Annotated[
        str | None,
        typer.Option(metavar="MIN:MAX", help="Number of replicas (default: TENORA_RAY__MIN_REPLICAS and MAX)"),
    ] = None,
) -> None:
    """Start engine replicas, or change their number.

    Without TENORA_RAY__ADDRESS, this starts a cluster on this machine and holds it until SIGINT or SIGTERM. With an
    address, it deploys the replicas there and returns. With the address `local` it does so if a cluster runs on this
    HOME. The replicas read their settings from the environment in which Ray was started on their machine.
    """
    settings = _with_replicas(load_settings(), replicas)
    with report_failures():
        _check(settings)
        if settings.ray.address is None or (settings.ray.address == "local" and not _runs(settings)):
            _hold(settings)
        else:
            from app.ray.cluster import connect

            connect(settings)
            _deploy(settings)


@app.command()
def status(as_json: Json = False) -> None:
    """Show the state of each engine replica."""
    settings = load_settings()
    # Ray prints to stdout, for example of a node that has ended.
    with report_failures(), contextlib.redirect_stdout(sys.stderr):
        snapshots, state = asyncio.run(_snapshots(settings))
    rows = [_row(snapshot) for snapshot in snapshots]
    if as_json:
        emit_json(rows)
    else:
        emit_table(_COLUMNS, rows, empty=state)


@app.command()
def down() -> None:
    """Stop the engine replicas, after their last requests. Registry, store and disk caches stay."""
    settings = load_settings()
    from app.ray import cluster

    with report_failures():
        if settings.ray.address in (None, "local"):
            note("The engine replicas have stopped." if cluster.stop(settings.home) else "No engine replicas ran.")
            return
        cluster.connect(settings)
        from app.ray.application import remove

        remove()
    note("The engine replicas have stopped.")


@app.command()
def demo(
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on (default: TENORA_PORT)")] = None,
) -> None:
    """Serve the demo with two engine replicas and one server on this machine."""
    from app.cli.fleet_demo import run_demo

    run_demo(load_settings(port=port))


def _check(settings: Settings) -> None:
    """Report common mistakes before the slow start of the replicas, which would show tracebacks."""
    from app.cli.registry import check_schema
    from app.ray.library import require_ray
    from app.served_base import open_base
    from app.wiring.store import configured_store

    require_ray()
    check_schema(settings)
    open_base(settings)
    configured_store(settings)


def _with_replicas(settings: Settings, text: str | None) -> Settings:
    if text is None:
        return settings
    match = _RANGE.fullmatch(text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (match and least <= most and 1 <= most <= _MOST):
        fail(f"--replicas is {text[:40]!r}. Write MIN:MAX or a number up to {_MOST}, such as 2:8, 0:4 or 3.", USAGE)
    ray = settings.ray.model_copy(update={"min_replicas": least, "max_replicas": most})
    return settings.model_copy(update={"ray": ray})


def _runs(settings: Settings) -> bool:
    from app.ray.cluster import started_on

    return started_on(settings.home) is not None


def _hold(settings: Settings) -> None:
    """Run a cluster with the replicas until a signal."""
    from app.ray.cluster import head, started_on

    if started_on(settings.home) is not None:
        fail(f"Engine replicas already run on {settings.home}. Stop them with `tenora engines down`.")
    _export(settings)
    ended = threading.Event()
    with head(settings) as address:
        # Ray has set its own handlers.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        _deploy(settings)
        note(
            f"The cluster is at {address}. Start servers with TENORA_RAY__ADDRESS=local on this HOME. "
            "Press Ctrl-C to stop the replicas."
        )
        ended.wait()
        from app.ray.application import remove

        remove()


def _deploy(settings: Settings) -> None:
    from app.ray.application import deploy

    if settings.ray.min_replicas == 0:
        deploy(settings)
        note("The engine replicas are deployed. The first request starts one.")
        return
    note("Starting the engine replicas. This takes about a minute.")
    deploy(settings)
    note("The engine replicas answer.")


def _export(settings: Settings) -> None:
    """Make paths in the environment absolute: the replicas run in other folders."""
    os.environ["TENORA_HOME"] = str(settings.home.resolve())
    if settings.base_model and Path(settings.base_model).exists():
        os.environ["TENORA_BASE_MODEL"] = str(Path(settings.base_model).resolve())
    make_paths_absolute(os.environ, secret_setting_names())


async def _snapshots(settings: Settings) -> tuple[list["Snapshot"], str]:
    """Return the replicas' states, and in words the state of a fleet without replicas."""
    from app.ray.cluster import open_transport
    from app.ray.snapshot import decode_snapshot
    from app.ray.transport import NoReplicas, Phase, ReplicaLost

    transport = await open_transport(settings)
    try:
        found = await transport.call_all("snapshot", b"", timeout_s=_STATUS_S)
    except NoReplicas:
        found = []
    if found:
        return [decode_snapshot(data) for data in found], ""
    try:
        deployed = await transport.deployed()
    except ReplicaLost:
        raise EngineUnavailable("The cluster of the engine replicas does not answer.") from None
    words = {
        Phase.ASLEEP: "No engine replica runs. The next request starts one.",
        Phase.STARTING: "No engine replica answers yet.",
        Phase.FAILED: "The engine replicas cannot start.",
        Phase.ABSENT: "No engine replicas are deployed.",
    }
    return [], f"{words[deployed.phase]} {deployed.reason}".strip()


def _row(snapshot: "Snapshot") -> dict[str, Any]:
    engine = snapshot.report.status
    return {
        "node": snapshot.node,
        "pid": snapshot.pid,
        "state": engine.state.value,
        "slots": engine.slots,
        "slots_used": engine.slots_used,
        "running": engine.running,
        "waiting": engine.waiting,
        "loads": engine.loads,
        "restarts": engine.restarts,
    }
