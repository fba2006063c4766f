"""Uvicorn server with graceful shutdown for long-lived streams behind a proxy.

The shutdown has three phases:

1. Drain: report not ready and ask each connection to close after its next answer. Requests are still accepted, so
   that proxies turn away from the server before it refuses them.
2. Grace: accept no more requests and let the running ones finish.
3. Abort: end the requests that still run with an error that names the shutdown.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.lifespan.on import LifespanOn

from app.cli.connections import BoundedProtocol
from app.engine.port import Engine
from app.support.gc_tuning import collect_rarely
from app.wiring.container import Container
from app.wiring.gateway import Gateway

logger = logging.getLogger(__name__)

#: Time for aborted requests to send their error, and for uvicorn to notice their end, in seconds.
_LAST_WORDS_S = 10
_POLL_S = 0.05
#: Ticks of uvicorn (0.1 s each) between two sweeps over all connections.
_TICKS = 20


class _Lifespan(LifespanOn):
    """Uvicorn's lifespan with an interruptible start."""

    _interrupted = False

    def interrupt(self) -> None:
        """Cancel the start and stop what it started. No effect after the start."""
        if not self.startup_event.is_set():
            logger.warning("The server was stopped before it had started.")
            self._interrupted = True
            self._main.cancel()

    async def main(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("The lifespan does not run in a task.")
        self._main = task
        await super().main()

    async def send(self, message: Any) -> None:
        # Drop the traceback of the cancellation.
        await super().send(message | {"message": ""} if self._interrupted else message)


class Server(uvicorn.Server):
    """Server that drains before it stops.

    Args:
        drain_s: seconds after SIGTERM in which requests are still accepted. SIGINT skips this phase.
        grace_s: seconds after that for running requests to finish.
        announce: called once the server answers.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        *,
        drain_s: float,
        grace_s: float,
        announce: Callable[[Gateway], Awaitable[None]] | None = None,
    ) -> None:
        config.timeout_graceful_shutdown = round(grace_s + _LAST_WORDS_S)
        super().__init__(config)
        if not config.loaded:
            config.load()
        config.lifespan_class = _Lifespan
        self._app, self._drain_s, self._grace_s, self._announce = app, drain_s, grace_s, announce
        #: Received signals in their order.
        self.signals: list[int] = []

    @property
    def start_error(self) -> Exception | None:
        """Return the error with which the application's start failed, if it did."""
        error: Exception | None = getattr(self._app.state, "start_error", None)
        return error

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signals.append(sig)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server. A signal during the start stops what was started and raises SystemExit, as uvicorn does."""
        watching = asyncio.create_task(self._interrupt_at_signal())
        try:
            await super().startup(sockets)
        finally:
            watching.cancel()
        collect_rarely()
        if self._announce is not None:
            await self._announce(self._app.state.container.gateway)

    async def _interrupt_at_signal(self) -> None:
        while not self.signals:  # noqa: ASYNC110 - signals set no event
            await asyncio.sleep(_POLL_S)
        if isinstance(self.lifespan, _Lifespan):
            self.lifespan.interrupt()

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, BoundedProtocol):
                    connection.sweep(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        container: Container = self._app.state.container
        container.gateway.readiness.leave()
        container.node.engine.leave()
        container.gateway.batch_runner.leave()
        await self._drain()
        # End event feeds, which never end by themselves.
        container.gateway.events.end()
        ending = asyncio.create_task(self._end_requests(container.node.engine))
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._drain_s
        # A second signal skips the drain.
        while self.signals == [signal.SIGTERM] and loop.time() < ends:  # noqa: ASYNC110 - signals set no event
            await asyncio.sleep(_POLL_S)

    async def _end_requests(self, engine: Engine) -> None:
        await asyncio.sleep(self._grace_s)
        if self.server_state.tasks:
            logger.warning(
                "Ending %d requests that still run after %.0f s.", len(self.server_state.tasks), self._grace_s
            )
            await engine.stop()
