"""Minimum transfer rate of request bodies: a client that trickles bytes must not occupy an upload permit."""

import asyncio

from starlette.types import Message, Receive

from app.domain.errors import BodyTooSlow
from app.settings import LimitSettings


class BodyPace:
    """Credit of one body in seconds: waiting spends it, received bytes earn it back, up to the grace period.

    Only the time that the server waits for the client counts, so a slow disk does not spend credit.
    """

    __slots__ = ("_credit_s", "_grace_s", "_rate")

    def __init__(self, limits: LimitSettings) -> None:
        self._rate = limits.body_bytes_per_second
        self._grace_s = self._credit_s = limits.body_grace_seconds

    async def next(self, receive: Receive) -> Message:
        """Receive the next message of the body.

        Raises:
            BodyTooSlow: the credit is spent.
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
