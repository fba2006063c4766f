"""Supervisor: detect the engine's death, release its session, and start another with exponential backoff."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from app.domain.errors import EngineUnavailable
from app.engine.status import EngineState

logger = logging.getLogger(__name__)

_MAX_BACKOFF_S = 60.0
#: Retry-After for clients, in seconds: roughly the start time of a small engine.
_RETRY_AFTER_S = 15


class Session(Protocol):
    """Engine session, as the supervisor sees it.

    Attributes:
        dead: set at its death.
        hung: whether it was killed because it no longer answered.
    """

    dead: asyncio.Event
    hung: bool

    async def end(self) -> None:
        """Release everything that the session holds. Called once, after its death or at shutdown."""


S = TypeVar("S", bound=Session)


class Supervisor(Generic[S]):
    """Owner of the current engine session.

    Args:
        launch: function that starts a session and returns it once it answers.
        backoff_s: pause before a failed start is retried, in seconds; doubles up to 60.
    """

    def __init__(self, launch: Callable[[], Awaitable[S]], *, backoff_s: float) -> None:
        self._launch = launch
        self._backoff_s = backoff_s
        self._session: S | None = None
        self._guard: asyncio.Task[None] | None = None
        self._leaving, self._launching = False, False
        self.state = EngineState.STOPPED
        self.restarts, self.hangs = 0, 0

    @property
    def current(self) -> S | None:
        """Session that answers now, or None."""
        return None if self._session is None or self._session.dead.is_set() else self._session

    @property
    def session(self) -> S:
        """Session that answers now.

        Raises:
            EngineUnavailable: no session answers.
        """
        if (session := self.current) is None:
            raise EngineUnavailable("The engine is starting. Try again later.", retry_after=_RETRY_AFTER_S)
        return session

    async def start(self) -> None:
        """Start the first session. A failure is raised, not retried, as nothing has worked yet."""
        self.state = EngineState.STARTING
        try:
            self._session = await self._launch()
        except BaseException:
            self.state = EngineState.STOPPED
            raise
        self.state = EngineState.READY
        self._guard = asyncio.create_task(self._keep_alive(self._session))

    def leave(self) -> None:
        """Launch no more sessions. The current one continues until :meth:`stop`, or until its death."""
        self._leaving = True
        if self._launching and self._guard is not None:
            self.state = EngineState.STOPPED
            self._guard.cancel()

    async def stop(self) -> None:
        self.state = EngineState.STOPPED
        if self._guard is not None:
            if not self._guard.cancelling():
                self._guard.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._guard
        session, self._session = self._session, None
        if session is not None:
            await session.end()

    async def _keep_alive(self, session: S) -> None:
        while True:
            await session.dead.wait()
            self.state = EngineState.RESTARTING
            self._session = None
            logger.error("The engine %s.", "hung" if session.hung else "died")
            self.hangs += session.hung
            try:
                await session.end()
            except Exception:
                logger.exception("The engine's session did not end cleanly.")
            if self._leaving:
                self.state = EngineState.STOPPED
                logger.warning("The server is shutting down, so no other engine is started.")
                return
            logger.warning("Starting the engine again.")
            self._launching = True
            session = await self._launch_until_up()
            self._launching = False
            self._session = session
            self.restarts += 1
            self.state = EngineState.READY
            logger.warning("The engine answers again.")

    async def _launch_until_up(self) -> S:
        backoff_s = self._backoff_s
        while True:
            try:
                return await self._launch()
            except Exception:
                logger.exception("The engine did not start. The next attempt is in %.0f s.", backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)
