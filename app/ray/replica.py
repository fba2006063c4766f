"""Engine replica: an engine node in an actor of Ray Serve."""

import logging
import logging.config
import os
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from pathlib import Path

from adapters.errors import StorageError
from app.database.urls import database_url
from app.domain.errors import EngineUnavailable, TenoraError
from app.domain.node_snapshots import NodeRole
from app.engine.status import EngineState
from app.observability.logs import log_config, shared_with_vllm
from app.ray.answering import Answering
from app.ray.preference import RoutingStats
from app.ray.scaling import LOAD
from app.ray.snapshot import Recorder, Snapshot, decode_number, encode_snapshot
from app.ray.state import LoadTimes, replica_report
from app.ray.wire import WIRE_VERSION, WireError, decode_key, encode_error, encode_smoke
from app.served_base import base_folder, base_name
from app.services.deletion.version_guard import VersionGuard
from app.settings import Settings
from app.support.home import HomeInUse, exclusive
from app.wiring.engine_node import EngineNode
from app.wiring.lifecycle import running_node
from app.wiring.resources import Resources

logger = logging.getLogger(__name__)

#: First words of the error of a replica that cannot start.
START_FAILED = "The engine replica could not start"

#: SQLSTATE ``insufficient_privilege``.
_NO_RIGHT = "42501"

#: Replicas on one machine and one HOME.
_MOST = 1000


class EngineReplica:
    """Actor with an engine, its queue, residency, disk cache, pins and deletions.

    Its settings are those of the environment in which Ray was started on its machine. Its methods take and return
    messages of :mod:`app.ray.wire` and never raise, so that no exception is pickled.
    """

    async def __init__(self) -> None:  # type: ignore[misc]
        self._stack = AsyncExitStack()
        settings = Settings()
        try:
            home = self._stack.enter_context(replica_home(settings.home.resolve() / "engines"))
            settings = replica_settings(settings, home)
            _configure(settings)
            await self._start(settings)
        except Exception as error:  # noqa: BLE001 - told in words
            await self._stack.aclose()
            # Ray pickles what is raised here, and shows it to operators.
            raise RuntimeError(f"{START_FAILED}: {start_failure(error)}") from None

    async def answer(self, request: bytes) -> AsyncGenerator[bytes]:
        """Yield the frames of an answer."""
        async with aclosing(self._answering.frames(request)) as frames:
            async for frame in frames:
                yield frame

    async def outcome(self, request_id: bytes) -> bytes:
        """Return the outcome of a request whose answer was cut; empty if this replica did not run it."""
        return await self._answering.outcome(request_id.decode("utf-8", "replace"))

    async def smoke(self, key: bytes) -> bytes:
        """Run the smoke check of a version."""
        try:
            version = decode_key(key)
            async with self._guard.request(version):
                return encode_smoke(await self._node.engine.smoke(version))
        except WireError as error:
            return encode_error(EngineUnavailable(str(error)))
        except (TenoraError, StorageError) as error:
            return encode_error(error)
        except Exception as error:
            logger.exception("A smoke check failed.")
            return encode_error(error)

    async def snapshot(self, numbers: bytes) -> bytes:
        """Return the state of the engine, and what has happened since the gateway's last question."""
        recorder, known = self._recorder, decode_number(numbers, self._process)
        report, node = self._node.engine.report(), self._resources.node_id
        snapshot = Snapshot(
            wire=WIRE_VERSION,
            process=self._process,
            pid=os.getpid(),
            report=report,
            routing=replica_report(node, report, self._node.cache.digests, self._times),
            number=recorder.number,
            events=recorder.events_after(known),
            waits=recorder.waits_after(known),
        )
        return encode_snapshot(snapshot)

    async def record_routing_stats(self) -> RoutingStats:
        """Return the node of this replica, by which gateways address it. Ray asks each second."""
        return {"node": self._resources.node_id, "slots": self._node.engine.status().slots}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load since the last call. Ray asks every few seconds."""
        return {LOAD: self._answering.load.read()}

    async def check_health(self) -> None:
        """Raise if the engine has ended for good, so that Ray replaces this replica."""
        if self._node.engine.status().state is EngineState.STOPPED:
            raise RuntimeError("The engine has stopped.")

    async def __del__(self) -> None:
        """Stop the engine. Ray calls this once the last request has ended."""
        await self._stack.aclose()

    async def _start(self, settings: Settings) -> None:
        # Import vLLM in the fork server and here at the same time.
        from app.engine.vllm.worker.fork_server import start_ahead

        start_ahead()
        self._process, self._recorder, self._times = uuid.uuid4().hex, Recorder(), LoadTimes()
        self._resources = resources = Resources(settings)
        self._guard = VersionGuard(resources.database)
        self._node = node = EngineNode(resources, in_flight=self._guard, role=NodeRole.REPLICA)
        node.engine.subscribe(self._recorder.note)
        node.engine.subscribe(self._times.note)
        node.engine.watch_waits(self._recorder.waited)
        self._answering = Answering(node.engine, self._guard, node.prefetching.seen, node=resources.node_id)
        await self._stack.enter_async_context(running_node(node))


@contextmanager
def replica_home(engines: Path) -> Iterator[Path]:
    """Lock the first free HOME of a replica, ``engines/1`` and so on. The disk cache of an earlier replica is in it.

    Raises:
        OSError: no HOME can be created or locked.
    """
    for number in range(1, _MOST + 1):
        home = engines / str(number)
        try:
            with exclusive(home):
                yield home
                return
        except HomeInUse:
            continue
    raise OSError(f"{engines} has {_MOST} folders, all of them in use.")


def replica_settings(settings: Settings, home: Path) -> Settings:
    """Return the settings of a replica: its HOME, with the registry, store and base of the server's HOME.

    It gets neither the pepper nor the URL of the registry with all rights, if there is one for replicas.
    """
    server = settings.home.resolve()
    changed: dict[str, object] = {
        "home": home,
        "database_url": settings.ray.database_url or database_url(settings),
        "pepper": None,
        "accepted_peppers": (),
        "store_url": settings.store_url or (server / "blobs").as_uri(),
        "base_model": str(base_folder(settings)),
        "base_model_name": base_name(settings),
    }
    return settings.model_copy(update=changed)


def _configure(settings: Settings) -> None:
    logging_of = log_config(settings.log, os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper())
    os.environ.update(shared_with_vllm(logging_of, settings.home, os.environ))
    logging.config.dictConfig(logging_of)


def start_failure(error: BaseException) -> str:
    """Describe the error of a start for an operator."""
    if getattr(getattr(error, "orig", None), "sqlstate", None) == _NO_RIGHT:
        return (
            "The database role of replicas lacks a right that this release needs. "
            "Run `tenora server database-role ROLE --apply`."
        )
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]
