"""Body reader: parse large bodies in a thread, one at a time, round-robin over tenants."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from adapters.fair_semaphore import FairSemaphore, QueueFull
from app.domain.errors import Busy
from app.services.bodies.parsing import SMALL_BYTES, parse_large_object, parse_object

Parsed = TypeVar("Parsed")

#: Seconds that a large body waits for its turn. See docs/decisions/0025-parse-large-bodies-in-turn.md.
_PATIENCE_S = 10.0
_RETRY_AFTER_S = 2


class BodyReader:
    """Parses the bodies of all requests.

    Threads share the GIL with the event loop. More than one parsing thread therefore gains nothing and delays every
    stream. Tenants take turns, so a tenant that sends many large bodies only delays itself.
    """

    def __init__(self) -> None:
        self._semaphore = FairSemaphore(1)

    async def parse(self, raw: bytes, *, share: str, before: Callable[[], None]) -> dict[str, Any]:
        """Parse a JSON object.

        Args:
            share: tenant that holds the permit.
            before: callback at the start of this body's turn; it may refuse the request.

        Raises:
            InvalidRequest: see :func:`app.services.bodies.parsing.parse_object`.
            Busy: too many large bodies are waiting.
        """
        if len(raw) <= SMALL_BYTES:
            before()
            return parse_object(raw)
        return await self.in_turn(lambda: parse_large_object(raw), share=share, before=before)

    async def in_turn(
        self, parse: Callable[[], Parsed], *, share: str, before: Callable[[], None] = lambda: None
    ) -> Parsed:
        """Parse a large body in a thread. The arguments are those of :meth:`parse`.

        Raises:
            Busy: too many large bodies are waiting.
            Exception: any error of ``parse`` or ``before``.
        """
        try:
            async with self._semaphore.permit(share, patience_s=_PATIENCE_S):
                before()
                return await asyncio.to_thread(parse)
        except QueueFull:
            message = "Too many large request bodies are waiting to be parsed. Try again later."
            raise Busy(message, retry_after=_RETRY_AFTER_S) from None
