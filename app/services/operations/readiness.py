"""Readiness: probe the engine, the registry and the store with real calls."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from adapters.errors import AdapterError, ForeignStore
from app.domain.errors import TenoraError

logger = logging.getLogger(__name__)

Probe = Callable[[], Awaitable[None]]

_TIMEOUT_S = 3.0
#: Seconds between two periodic probes.
EVERY_S = 5.0
#: Seconds for which results are reused, however often they are requested.
_FRESH_S = 1.0
_LEAVING = "The server is shutting down."


class Readiness:
    """Readiness probes by name. A probe raises if its part cannot serve.

    Args:
        limitations: callbacks for parts that answer; each returns a current limitation, in words for anyone, or None.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self,
        probes: Mapping[str, Probe],
        *,
        limitations: Mapping[str, Callable[[], str | None]] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limitations = limitations
        self._parts = {name: _Part(name, probe) for name, probe in probes.items()}
        self._clock = clock
        self._asking = asyncio.Lock()
        self._problems: dict[str, str | None] = {name: _silent(name) for name in probes}
        self._asked_at = float("-inf")
        self.leaving = False

    def leave(self) -> None:
        """Report not ready from now on, because the server shuts down soon."""
        self.leaving = True

    @property
    def limitations(self) -> Mapping[str, str]:
        """Current limitations of parts that answer. Inference continues in spite of them."""
        return {part: words for part, limitation in self._limitations.items() if (words := limitation())}

    @property
    def last(self) -> Mapping[str, str | None]:
        """Result of the last call of :meth:`problems`, however old. Sends no probe."""
        return self._problems

    async def problems(self) -> Mapping[str, str | None]:
        """Return the problem of each part, in words for anyone, or None. Results are at most a second old."""
        async with self._asking:
            if self._clock() - self._asked_at >= _FRESH_S:
                problems = await asyncio.gather(*(part.problem() for part in self._parts.values()))
                self._problems = dict(zip(self._parts, problems, strict=True))
                self._asked_at = self._clock()
            return self._problems | {"server": _LEAVING} if self.leaving else self._problems


class _Part:
    """One probe. A probe that hangs is awaited again, not restarted: its thread would hang too."""

    def __init__(self, name: str, probe: Probe) -> None:
        self._name = name
        self._probe = probe
        self._running: asyncio.Future[None] | None = None

    async def problem(self) -> str | None:
        if self._running is None:
            self._running = asyncio.ensure_future(self._probe())
        finished, _ = await asyncio.wait({self._running}, timeout=_TIMEOUT_S)
        if not finished:
            logger.warning("The %s did not answer within %.0f s.", self._name, _TIMEOUT_S)
            return _silent(self._name)
        running, self._running = self._running, None
        error = running.exception()
        if error is None:
            return None
        logger.warning("The %s is not ready: %s", self._name, error)
        match error:
            case TenoraError():
                return error.message
            case ForeignStore():
                return f"The {self._name} belongs to another registry."
            case AdapterError():
                return _silent(self._name)
            case _:
                raise error


def _silent(part: str) -> str:
    return f"The {part} does not answer."
