"""The least rate of a request's body: who sends a byte a minute must not hold a place of those who upload."""

import asyncio

from starlette.types import Message, Receive

from app.domain.errors import BodyTooSlow
from app.settings import LimitSettings


class BodyPace:
    """One body's credit in seconds: waiting for bytes uses it up, and bytes earn it back, up to the grace.

    Only the time that the server waits for the client counts, so that a slow disk is nobody's fault.
    """

    __slots__ = ("_credit_s", "_grace_s", "_rate")

    def __init__(self, limits: LimitSettings) -> None:
        self._rate = limits.body_bytes_per_second
        self._grace_s = self._credit_s = limits.body_grace_seconds

    async def next(self, receive: Receive) -> Message:
        """The next message of the body.

        Raises:
            BodyTooSlow: the credit is used up.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._credit_s):
                message = await receive()
        except TimeoutError:
            raise BodyTooSlow(
                f"The body came at less than {self._rate} bytes a second. Send it again over a faster connection.",
                param="body",
            ) from None
        earned_s = len(message.get("body", b"")) / self._rate
        self._credit_s = min(self._grace_s, self._credit_s - (clock() - began) + earned_s)
        return message
