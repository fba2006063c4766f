"""Whether this process can serve: its engine, its registry and its store, each asked for real."""

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
#: Seconds between two times that this server asks by itself.
EVERY_S = 5.0
#: However often somebody asks, what is behind the probes is asked once in this many seconds.
_FRESH_S = 1.0
_SILENT = "does not answer"
_FOREIGN = "belongs to another registry"
_LEAVING = "is shutting down"


class Readiness:
    """The probes by name; each raises if its part cannot serve.

    Args:
        limitations: for a part that answers, what it cannot do just now, in words for anyone, or None.
        clock: seconds, monotonic.
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
        self._problems: dict[str, str | None] = dict.fromkeys(probes, _SILENT)
        self._asked_at = float("-inf")
        self.leaving = False

    def leave(self) -> None:
        """From now on this server is not ready, and soon it is gone."""
        self.leaving = True

    @property
    def limitations(self) -> Mapping[str, str]:
        """What parts that answer cannot do just now: inference goes on without it."""
        return {part: words for part, limitation in self._limitations.items() if (words := limitation())}

    @property
    def last(self) -> Mapping[str, str | None]:
        """As :meth:`problems`, but what was found when somebody last asked, however long ago that was."""
        return self._problems

    async def problems(self) -> Mapping[str, str | None]:
        """For each part what is wrong with it, in words for anyone, or None; at most a second old."""
        async with self._asking:
            if self._clock() - self._asked_at >= _FRESH_S:
                found = await asyncio.gather(*(part.problem() for part in self._parts.values()))
                self._problems = dict(zip(self._parts, found, strict=True))
                self._asked_at = self._clock()
            return self._problems | {"server": _LEAVING} if self.leaving else self._problems


class _Part:
    """One probe. While it hangs it is waited for, not started again: its thread would hang too."""

    def __init__(self, name: str, probe: Probe) -> None:
        self._name = name
        self._probe = probe
        self._running: asyncio.Future[None] | None = None

    async def problem(self) -> str | None:
        if self._running is None:
            self._running = asyncio.ensure_future(self._probe())
        finished, _ = await asyncio.wait({self._running}, timeout=_TIMEOUT_S)
        if not finished:
            logger.warning("%s: no answer within %.0f s", self._name, _TIMEOUT_S)
            return _SILENT
        running, self._running = self._running, None
        error = running.exception()
        if error is None:
            return None
        logger.warning("%s: %s", self._name, error)
        match error:
            case TenoraError():
                return error.message
            case ForeignStore():
                return _FOREIGN
            case AdapterError():
                return _SILENT
            case _:
                raise error
