"""``Idempotency-Key`` on administrative POSTs, whatever their bodies are: plain ASGI, as uploads must stream.

Of a first request the body is hashed as the route reads it, and the answer is held back until it is kept. Of a
repetition the body is read and hashed, and nothing else is done with it. Nothing is stored for a caller without a
key that works.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable

from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import authenticate
from app.api.errors import error_response
from app.domain.errors import BodyTooSlow, InvalidRequest, TenoraError, TooLarge
from app.services.access.idempotency import HEADER, Answer, IdempotencyService, Kept, Reservation
from app.settings import LimitSettings
from app.wiring.container import Container

REPLAYED = (b"idempotent-replayed", b"true")

#: Of the routes whose POSTs take the header.
PATHS = re.compile(r"/admin/.+|/v1/adapters(?:/.*)?")
_NAME = HEADER.lower().encode()

#: Hashed at once, in a thread.
_BATCH_BYTES = 2**20
#: An answer beyond this is not one of ours to keep; it is passed on as it comes.
_MAX_ANSWER_BYTES = 8 * 2**20
#: Of the connection, not of the answer.
_NOT_KEPT_HEADERS = frozenset({b"connection", b"transfer-encoding"})


class Idempotency:
    """ASGI middleware, inside the request frame: that caps the body and names the request."""

    def __init__(self, app: ASGIApp, limits: LimitSettings) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        keys = _keys(scope)
        if not keys:
            await self._app(scope, receive, send)
            return
        process: Container = scope["state"]["process"]
        body = _Body(receive, _digest_of(scope), self._limits.upload_idle_seconds)
        try:
            caller = await authenticate(Request(scope))
            found = await process.idempotency.reserve(caller.key_id, _the_one(keys))
            if isinstance(found, Kept):
                await body.drain()
                process.idempotency.check(found, await body.digest())
        except TenoraError as error:
            await error_response(scope["path"], error)(scope, receive, send)
            return
        if isinstance(found, Kept):
            await _replay(found.answer, send)
        else:
            await self._run(scope, body, _Held(send), process.idempotency, found)

    async def _run(
        self, scope: Scope, body: "_Body", held: "_Held", service: IdempotencyService, reservation: Reservation
    ) -> None:
        request: str | None = None
        try:
            async with service.holding(reservation):
                await self._app(scope, body.receive, held.send)
                if not held.passes:
                    request = await self._rest(body)
        except BaseException:
            # Also when the server stops: whoever asks again then finds no reservation.
            await asyncio.shield(service.release(reservation))
            raise
        if held.passes:
            await service.release(reservation)
            return
        await service.settle(reservation, request, held.answer)
        await held.let_go()

    async def _rest(self, body: "_Body") -> str | None:
        """The whole request's digest; None if the route refused an upload and most of it is still to come."""
        try:
            await body.drain(at_most=self._limits.body_bytes)
        except (BodyTooSlow, InvalidRequest, TooLarge, ClientDisconnect):
            return None
        return await body.digest()


class _Body:
    """A request's body, hashed as it passes.

    Args:
        idle_s: longest wait for more of it, in seconds, where nobody else waits.
    """

    def __init__(self, receive: Receive, digest: "_Digest", idle_s: float) -> None:
        self._receive, self._digest, self._idle_s = receive, digest, idle_s
        self._whole = False

    async def receive(self) -> Message:
        """As ASGI's ``receive``."""
        message = await self._receive()
        if message["type"] == "http.request":
            await self._digest.add(message.get("body", b""))
            self._whole = not message.get("more_body", False)
        return message

    async def drain(self, *, at_most: int | None = None) -> None:
        """Read what is left.

        Raises:
            TooLarge: more than ``at_most`` bytes, or than the request's cap.
            BodyTooSlow, InvalidRequest: the client sent too little, or nothing, for too long.
            ClientDisconnect
        """
        read = 0
        while not self._whole:
            try:
                async with asyncio.timeout(self._idle_s):
                    message = await self.receive()
            except TimeoutError:
                raise InvalidRequest(f"body: found nothing for {self._idle_s:g} s, allowed a steady flow") from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            read += len(message.get("body", b""))
            if at_most is not None and read > at_most:
                raise TooLarge("body: found more than is worth reading", param="body")

    async def digest(self) -> str:
        return await self._digest.finish()


class _Held:
    """An answer that waits until it is kept."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._messages: list[Message] = []
        self._size = 0
        self.passes = False

    async def send(self, message: Message) -> None:
        """As ASGI's ``send``."""
        self._messages.append(message)
        self._size += len(message.get("body", b""))
        if self._size > _MAX_ANSWER_BYTES:
            self.passes = True
        if self.passes:
            await self.let_go()

    async def let_go(self) -> None:
        messages, self._messages = self._messages, []
        for message in messages:
            await self._send(message)

    @property
    def answer(self) -> Answer:
        start, *parts = self._messages
        headers = tuple(
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in start.get("headers", ())
            if name.lower() not in _NOT_KEPT_HEADERS
        )
        return Answer(start["status"], headers, b"".join(part.get("body", b"") for part in parts))


class _Digest:
    """SHA-256 of a request, in batches off the event loop.

    Clients draw a new multipart boundary for each sending of the same form, so it does not count.
    """

    def __init__(self, head: bytes, boundary: bytes) -> None:
        self._hash = hashlib.sha256(head)
        self._delimiter = b"--" + boundary if boundary else b""
        self._batch, self._tail = bytearray(), b""

    async def add(self, data: bytes) -> None:
        self._batch += data
        if len(self._batch) >= _BATCH_BYTES:
            await self._flush()

    async def finish(self) -> str:
        await self._flush()
        self._hash.update(self._tail)
        return self._hash.hexdigest()

    async def _flush(self) -> None:
        batch, self._batch = bytes(self._batch), bytearray()
        if len(batch) < _BATCH_BYTES:
            self._update(batch)
        else:
            await asyncio.to_thread(self._update, batch)

    def _update(self, batch: bytes) -> None:
        if not self._delimiter:
            self._hash.update(batch)
            return
        window, done = self._tail + batch, 0
        while (found := window.find(self._delimiter, done)) >= 0:
            self._hash.update(memoryview(window)[done:found])
            self._hash.update(b"--")
            done = found + len(self._delimiter)
        # A delimiter may begin at the end of this batch.
        kept = max(done, len(window) - len(self._delimiter) + 1)
        self._hash.update(memoryview(window)[done:kept])
        self._tail = window[kept:]


def _keys(scope: Scope) -> list[bytes]:
    """The values of the header, where it has a meaning."""
    if scope["type"] != "http" or scope["method"] != "POST" or not PATHS.fullmatch(scope["path"]):
        return []
    return [value for name, value in scope["headers"] if name == _NAME]


def _the_one(keys: list[bytes]) -> str:
    if len(keys) > 1:
        raise InvalidRequest(f"{HEADER}: found {len(keys)} headers, allowed one", param=HEADER)
    return keys[0].decode("latin-1")


def _digest_of(scope: Scope) -> _Digest:
    content_type = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"") if kind == b"multipart/form-data" else b""
    parts: Iterable[bytes] = (scope["method"].encode(), scope["raw_path"], scope["query_string"], b"")
    return _Digest(b"\n".join(parts), boundary)


async def _replay(answer: Answer, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": [*headers, REPLAYED]})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})
