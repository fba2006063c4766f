"""``Idempotency-Key`` on POSTs other than inference, as plain ASGI middleware because uploads must stream.

- First request: its body is hashed while the route reads it, and its answer is held back until it is stored.
- Repeated request: its body is read and hashed only, and the stored answer is replayed.

Nothing is stored for a caller without a valid key.
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
from app.wiring.gateway import Gateway

REPLAYED = (b"idempotent-replayed", b"true")

#: Routes whose POSTs accept the header.
PATHS = re.compile(r"/admin/.+|/v1/(?:adapters|files|uploads|batches|keys)(?:/.*)?")
_NAME = HEADER.lower().encode()

#: Batch size for hashing in a thread.
_BATCH_BYTES = 2**20
#: Largest answer that is stored; a larger one is passed through unstored.
_MAX_ANSWER_BYTES = 8 * 2**20
#: Headers that belong to the connection, not to the answer.
_NOT_KEPT_HEADERS = frozenset({b"connection", b"transfer-encoding"})


class Idempotency:
    """ASGI middleware. It must run inside RequestMiddleware, which caps the body and assigns the request id."""

    def __init__(self, app: ASGIApp, limits: LimitSettings) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        keys = _keys(scope)
        if not keys:
            await self._app(scope, receive, send)
            return
        gateway: Gateway = scope["state"]["gateway"]
        body = _Body(receive, _digest_of(scope), self._limits.upload_idle_seconds)
        try:
            caller = await authenticate(Request(scope))
            reserved = await gateway.idempotency.reserve(caller.key_id, _single(keys))
            if isinstance(reserved, Kept):
                await body.drain()
                gateway.idempotency.check(reserved, await body.digest())
        except TenoraError as error:
            await error_response(scope["path"], error)(scope, receive, send)
            return
        if isinstance(reserved, Kept):
            await _replay(reserved.answer, send)
        else:
            await self._run(scope, body, _Held(send), gateway.idempotency, reserved)

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
            # Release on cancellation too, e.g. at shutdown, so that a retry finds no stale reservation.
            await asyncio.shield(service.release(reservation))
            raise
        if held.passes:
            await service.release(reservation)
            return
        await service.settle(reservation, request, held.answer)
        await held.let_go()

    async def _rest(self, body: "_Body") -> str | None:
        """Return the whole request's digest; None if the route refused an upload before reading most of it."""
        try:
            await body.drain(at_most=self._limits.body_bytes)
        except (BodyTooSlow, InvalidRequest, TooLarge, ClientDisconnect):
            return None
        return await body.digest()


class _Body:
    """Request body that is hashed as it passes.

    Args:
        idle_s: longest wait for more bytes in seconds, while draining.
    """

    def __init__(self, receive: Receive, digest: "_Digest", idle_s: float) -> None:
        self._receive, self._digest, self._idle_s = receive, digest, idle_s
        self._whole = False

    async def receive(self) -> Message:
        """ASGI ``receive`` that hashes the body."""
        message = await self._receive()
        if message["type"] == "http.request":
            await self._digest.add(message.get("body", b""))
            self._whole = not message.get("more_body", False)
        return message

    async def drain(self, *, at_most: int | None = None) -> None:
        """Read and hash the rest of the body.

        Raises:
            TooLarge: the rest exceeds ``at_most`` bytes, or the body exceeds the request's cap.
            BodyTooSlow, InvalidRequest: the client sent too slowly, or nothing for ``idle_s``.
            ClientDisconnect: the client disconnected.
        """
        read = 0
        while not self._whole:
            try:
                async with asyncio.timeout(self._idle_s):
                    message = await self.receive()
            except TimeoutError:
                raise InvalidRequest(
                    f"No bytes of the body arrived for {self._idle_s:g} s. Send the request again without pauses."
                ) from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            read += len(message.get("body", b""))
            if at_most is not None and read > at_most:
                raise TooLarge("The rest of the body is too large to read.", param="body")

    async def digest(self) -> str:
        return await self._digest.finish()


class _Held:
    """Response buffer: holds an answer back until it is stored."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._messages: list[Message] = []
        self._size = 0
        self.passes = False

    async def send(self, message: Message) -> None:
        """ASGI ``send`` that buffers, and passes on an answer that is too large to store."""
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
    """SHA-256 of a request, computed in batches in a thread.

    The multipart boundary is left out: clients generate a new one each time they send the same form.
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
        while (start := window.find(self._delimiter, done)) >= 0:
            self._hash.update(memoryview(window)[done:start])
            self._hash.update(b"--")
            done = start + len(self._delimiter)
        # Keep the tail: a delimiter may span two batches.
        kept = max(done, len(window) - len(self._delimiter) + 1)
        self._hash.update(memoryview(window)[done:kept])
        self._tail = window[kept:]


def _keys(scope: Scope) -> list[bytes]:
    """Return the values of the Idempotency-Key header, or an empty list on routes that ignore it."""
    if scope["type"] != "http" or scope["method"] != "POST" or not PATHS.fullmatch(scope["path"]):
        return []
    return [value for name, value in scope["headers"] if name == _NAME]


def _single(keys: list[bytes]) -> str:
    if len(keys) > 1:
        raise InvalidRequest(f"{HEADER} was sent {len(keys)} times. Send it once.", param=HEADER)
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
