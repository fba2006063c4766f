"""The frame around every request: its id, the cap on its body, its metrics, and the answer to what nobody caught.

It sits on the path of every inference request, so it is plain ASGI and does little.
"""

import logging
import re
import uuid
from time import perf_counter

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import error_response
from app.api.multipart import OPTIONS_BYTES
from app.errors import TooLarge
from app.metrics import Metrics
from app.process import Process
from app.settings import LimitSettings
from app.uploads import MAX_PART_BYTES

logger = logging.getLogger(__name__)

#: As nginx counts a client that went away before it had its answer.
CLIENT_CLOSED_REQUEST = 499

#: Routes that take a version's files, whose own caps apply.
_UPLOAD_PATH = re.compile(r"/(?:v1|admin/tenants/[^/]+)/adapters/[^/]+/versions")

#: Routes that take a part of a resumable upload.
_PART_PATH = re.compile(r"/(?:v1|admin/tenants/[^/]+)/adapters/[^/]+/uploads/[^/]+/files/[^/]+/parts/[^/]+")

#: Of an upload's body, beside its two files: boundaries and headers, and the options.
_MULTIPART_BYTES = 64 * 1024 + OPTIONS_BYTES

#: Where a request's state keeps the way out for a body: the layers from here to the route only look at headers, and
#: a stream of events would pass each of them for every token.
SEND_BODY = "send_body"

#: A server on its way out asks for no further request on the connection, so that none arrives as it closes it.
_CLOSE = (b"connection", b"close")

_MAX_CLIENT_ID = 128
_UNPRINTABLE = re.compile(rb"[^\x20-\x7e]")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestFrame:
    """ASGI middleware; must be the outermost one of ours."""

    def __init__(self, app: ASGIApp, limits: LimitSettings) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._limits)
        started = perf_counter()
        try:
            if (too_large := exchange.read_headers()) is not None:
                await exchange.answer(too_large)
            else:
                await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            logger.info("request %s: the client went away", exchange.request_id)
        except Exception as error:
            logger.exception("request %s failed", exchange.request_id)
            if exchange.status:
                # Part of an answer is out: only a broken connection can say that it is not whole.
                raise
            await exchange.answer(error)
        finally:
            status = exchange.status or CLIENT_CLOSED_REQUEST
            exchange.metrics.observe(_method(scope), _route(scope), status, perf_counter() - started)


class _Exchange:
    """One request and its answer, seen from the frame."""

    __slots__ = ("_cap", "_headers", "_process", "_read", "_receive", "_scope", "_send", "request_id", "status")

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: LimitSettings) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._process: Process = scope["state"]["process"]
        self._cap = _cap(scope, limits)
        self._read = 0
        self.status = 0
        self.request_id = uuid.uuid4().hex
        scope["state"]["request_id"] = self.request_id
        scope["state"][SEND_BODY] = send
        self._headers = [(b"x-request-id", self.request_id.encode())]

    @property
    def metrics(self) -> Metrics:
        return self._process.metrics

    def read_headers(self) -> TooLarge | None:
        """Note the id that the client gave, and say so if the announced body is beyond the cap."""
        length = 0
        for name, value in self._scope["headers"]:
            if name == b"content-length":
                length = int(value)
            elif name == b"x-request-id":
                shown = _UNPRINTABLE.sub(b"", value)[:_MAX_CLIENT_ID]
                self._headers[1:] = [(b"x-client-request-id", shown)]
        return self._over_cap(length, f"{length} bytes")

    async def receive(self) -> Message:
        """Pass the body on, counted: a chunked one announces no length."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if (too_large := self._over_cap(self._read, "more")) is not None:
                raise too_large
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._headers]
            if self._process.readiness.leaving:
                message["headers"].append(_CLOSE)
        await self._send(message)

    async def answer(self, error: Exception) -> None:
        """Answer with an error that no route has handled."""
        await error_response(self._scope["path"], error)(self._scope, self._receive, self.send)

    def _over_cap(self, size: int, found: str) -> TooLarge | None:
        if size <= self._cap:
            return None
        return TooLarge(f"body: found {found}, allowed {self._cap} bytes", param="body")


def _cap(scope: Scope, limits: LimitSettings) -> int:
    path: str = scope["path"]
    if scope["method"] == "POST" and path.endswith("/versions") and _UPLOAD_PATH.fullmatch(path):
        return limits.config_bytes + limits.weights_bytes + _MULTIPART_BYTES
    if scope["method"] == "PUT" and _PART_PATH.fullmatch(path):
        return MAX_PART_BYTES
    return limits.body_bytes


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in _METHODS else "other"


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "none")
