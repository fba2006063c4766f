"""Cluster of Ray: start one on this machine, or connect to a running one."""

import asyncio
import json
import os
import platform
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.domain.errors import EngineUnavailable
from app.ray.library import check_network, prepare, require_ray
from app.ray.reachability import check_reachable
from app.ray.transport import Transport
from app.settings import Settings

_NAMESPACE = "tenora"
#: Ray's smallest store of objects, in bytes. The wire uses none of it.
_OBJECTS_BYTES = 80 * 2**20
_STOP_S, _POLL_S = 60.0, 0.2
_LOCAL = "local"
#: First characters of the name of a cluster's folder.
_FOLDER = "tenora-ray-"


@dataclass(frozen=True, slots=True)
class Started:
    """Cluster that ``tenora engines up`` started on this HOME.

    Attributes:
        pid: process that holds it.
        folder: its sockets and logs.
    """

    address: str
    pid: int
    folder: str = ""

    @property
    def is_alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def started_on(home: Path) -> Started | None:
    """Return the cluster that was started on this HOME and still runs. Blocks."""
    started = _recorded(home)
    return started if started and started.is_alive else None


@contextmanager
def head(settings: Settings) -> Iterator[str]:
    """Start a cluster in this process for the duration of the block, and yield its address. Blocks.

    The folder of its sockets and logs is a new one with a short name, as paths of sockets are limited.

    Raises:
        RayMissing
        Unsafe
        OSError: HOME cannot be written.
    """
    require_ray()
    prepare(settings.home)
    check_network(settings.ray.host, os.environ, plaintext=settings.ray.plaintext)
    _clear(settings.home)
    port = settings.ray.port or _free_port(settings.ray.host)
    os.environ["RAY_GCS_SERVER_PORT"] = str(port)
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    address = f"{settings.ray.host}:{port}"
    import ray

    try:
        ray.init(
            # Without it, the variable RAY_ADDRESS would lead to another cluster.
            address=_LOCAL,
            namespace=_NAMESPACE,
            include_dashboard=False,
            # The replicas' logs go to stderr of this process too.
            log_to_driver=True,
            configure_logging=False,
            object_store_memory=_OBJECTS_BYTES,
            _node_ip_address=settings.ray.host,
            _temp_dir=str(folder),
            **_resources(settings),
        )
        record = _record(settings.home)
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        record.write_text(json.dumps(asdict(Started(address, os.getpid(), str(folder)))), encoding="utf-8")
        yield address
    finally:
        _record(settings.home).unlink(missing_ok=True)
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def connect(settings: Settings) -> None:
    """Connect this process to the cluster of the settings. Blocks.

    Raises:
        RayMissing
        Unsafe
        EngineUnavailable: the cluster does not answer, or runs other releases of Ray or Python.
    """
    require_ray()
    prepare(settings.home)
    address = resolved_address(settings)
    host = address.rpartition(":")[0]
    check_network(host, os.environ, plaintext=settings.ray.plaintext)
    check_reachable(address)
    import ray
    from ray.exceptions import RayError

    try:
        ray.init(
            address=address,
            namespace=_NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address=settings.ray.host if host.startswith("127.") else None,
        )
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise EngineUnavailable(_why_not(address, str(error), ray.__version__)) from None


def resolved_address(settings: Settings) -> str:
    """Return the address of the cluster.

    Raises:
        EngineUnavailable: no cluster was started on this HOME.
    """
    address = settings.ray.address or _LOCAL
    if address != _LOCAL:
        return address
    if (started := started_on(settings.home)) is None:
        raise EngineUnavailable(f"No engine replicas run on {settings.home}. Start them with `tenora engines up`.")
    return started.address


async def open_transport(settings: Settings) -> Transport:
    """Connect to the cluster, and return the transport to its replicas.

    Raises: as :func:`connect`.
    """

    await asyncio.to_thread(connect, settings)
    from app.ray.application import running_handle
    from app.ray.handles import HandleTransport

    ends = time.monotonic() + settings.ray.start_seconds
    while (handle := await asyncio.to_thread(running_handle)) is None:
        if time.monotonic() > ends:
            raise EngineUnavailable("No engine replicas are deployed. Deploy them with `tenora engines up`.")
        await asyncio.sleep(_POLL_S)
    return HandleTransport(handle)


def stop(home: Path) -> bool:
    """Stop the cluster that was started on this HOME, and wait for its end. Returns whether one ran. Blocks.

    Raises:
        TimeoutError: it has not ended after a minute.
    """
    if (started := started_on(home)) is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(started.pid, signal.SIGTERM)
    ends = time.monotonic() + _STOP_S
    while started_on(home) is not None:
        if time.monotonic() > ends:
            raise TimeoutError(f"The process {started.pid} has not ended after {_STOP_S:.0f} s.")
        time.sleep(_POLL_S)
    return True


def _recorded(home: Path) -> Started | None:
    """Return the last cluster that was started on this HOME, if it has not ended by itself."""
    try:
        record = json.loads(_record(home).read_text(encoding="utf-8"))
        return Started(str(record["address"]), int(record["pid"]), str(record.get("folder", "")))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _clear(home: Path) -> None:
    """Remove what a killed process left: its sockets and logs. Ray's processes end by themselves."""
    left = _recorded(home)
    if left and not left.is_alive and Path(left.folder).name.startswith(_FOLDER):
        shutil.rmtree(left.folder, ignore_errors=True)


def _why_not(address: str, message: str, own: str) -> str:
    """Return why the cluster cannot be used."""
    if found := re.search(r"cluster was started with:\s+Ray: (\S+)\s+Python: (\S+)", message):
        return (
            f"The cluster at {address} runs Ray {found[1]} on Python {found[2]}, and this process Ray {own} on Python "
            f"{platform.python_version()}. Install the same releases on all machines of the fleet."
        )
    reason = " ".join(message.split())[:300].rstrip(".")
    return f"The cluster at {address} cannot be used: {reason}. Check that this process has the token of the cluster."


def _record(home: Path) -> Path:
    return home / "engines" / "cluster.json"


def _free_port(host: str) -> int:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        port: int = listener.getsockname()[1]
        return port


def _resources(settings: Settings) -> dict[str, Any]:
    """Return the CPU cores that this machine offers: enough for the maximum of replicas, as they share the cores."""
    return {"num_cpus": max(os.cpu_count() or 1, round(settings.ray.cpus * settings.ray.max_replicas))}
