"""Uvicorn's server with a start and an end for long-lived streams behind a proxy.

The end, in order: it says that it is not ready and asks every connection to close after its next answer, but takes
requests still, so that proxies turn away from it before it turns away from them; it takes no more, and lets what runs
finish; it ends what still runs with an error that says so.
"""

import asyncio
import logging
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from app.cli.connections import BoundedProtocol
from app.garbage import collect_rarely
from app.process import Process

logger = logging.getLogger(__name__)

#: What ended requests have to send their last words, and uvicorn to see that they did.
_LAST_WORDS_S = 10
_POLL_S = 0.05
#: Uvicorn's tenths of a second between two looks at all connections.
_TICKS = 20


class Server(uvicorn.Server):
    """A server whose end nobody has to notice.

    Args:
        drain_s: seconds after SIGTERM in which it still takes requests; after SIGINT, none.
        grace_s: seconds that running requests have after that.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, *, drain_s: float, grace_s: float) -> None:
        config.timeout_graceful_shutdown = round(grace_s + _LAST_WORDS_S)
        super().__init__(config)
        self._app, self._drain_s, self._grace_s = app, drain_s, grace_s
        self._signals: list[int] = []

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals.append(sig)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        collect_rarely()

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, BoundedProtocol):
                    connection.sweep(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        process: Process = self._app.state.process
        process.readiness.leave()
        await self._drain()
        # They would never end by themselves.
        process.events.end()
        ending = asyncio.create_task(self._end_requests(process))
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._drain_s
        # A second signal is from somebody who does not want to wait.
        while self._signals == [signal.SIGTERM] and loop.time() < ends:  # noqa: ASYNC110 - signals set no event
            await asyncio.sleep(_POLL_S)

    async def _end_requests(self, process: Process) -> None:
        await asyncio.sleep(self._grace_s)
        if self.server_state.tasks:
            logger.warning("%d requests still run after %.0f s: ended", len(self.server_state.tasks), self._grace_s)
            await process.engine.stop()
