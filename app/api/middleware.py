"""Outermost middleware: request id, body cap, metrics, access log and unexpected errors.

Every inference request passes it, so it is plain ASGI. See docs/decisions/0029-request-path-overhead.md.
"""

import asyncio
import contextlib
import logging
import re
import secrets
from http import HTTPStatus
from time import perf_counter

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.body_pace import BodyPace
from app.api.content_encoding import NAME, Decompressor, encoding_of
from app.api.errors import ANTHROPIC_PATHS, LORAX_PATHS, error_response
from app.api.multipart import HEAD_BYTES, OPTIONS_BYTES
from app.domain.errors import InvalidRequest, TooLarge, UnsupportedEncoding
from app.domain.uploads import MAX_PART_BYTES
from app.observability.context import CURRENT, RequestContext
from app.observability.logs import ACCESS
from app.observability.tracing import begin_trace, mark_failed
from app.services.files.uploads import MAX_PART_BYTES as MAX_FILE_PART_BYTES
from app.settings import BatchSettings, LimitSettings
from app.wiring.gateway import Gateway

logger = logging.getLogger(__name__)
access = logging.getLogger(ACCESS)

#: Status of a request whose client disconnected before its answer, as nginx counts it.
CLIENT_CLOSED_REQUEST = 499

#: Routes that receive a version's files, which have their own caps.
_UPLOAD_PATH = re.compile(r"/(?:v1|admin/tenants/[^/]+)/adapters/[^/]+/versions")

#: Routes that receive the config and the header of the weights.
_PREFLIGHT_PATH = re.compile(r"/(?:v1|admin/tenants/[^/]+)/adapters/validate")

#: Routes that receive a part of a resumable upload.
_PART_PATH = re.compile(r"/(?:v1|admin/tenants/[^/]+)/adapters/[^/]+/uploads/[^/]+/files/[^/]+/parts/[^/]+")

#: Routes that receive a file of a batch, or a part of one.
_BATCH_FILE_PATH = "/v1/files"
_FILE_PART_PATH = re.compile(r"/v1/uploads/[^/]+/parts")

#: Allowance in bytes for a form besides its file.
_FORM_BYTES = 64 * 1024

#: Allowance in bytes for an upload's body besides its two files: boundaries, headers and options.
_MULTIPART_BYTES = 64 * 1024 + OPTIONS_BYTES

#: Key in the request's state of an error to answer without running a route: the connection limit was reached.
REFUSED = "refused"

#: Header that a draining server adds, so that no request arrives on the connection while the server closes it.
_CLOSE = (b"connection", b"close")

#: Routes whose bodies contain prompts.
_PROMPT_PATHS = (
    LORAX_PATHS
    | ANTHROPIC_PATHS
    | {"/v1/files", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/tokenize", "/v1/detokenize"}
)

#: Routes polled by load balancers and Prometheus.
_POLLED = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})

#: Bytes and seconds: limits for draining a body that the route did not read. Without draining, the connection has to
#: be closed after a refusal if the body arrives later than the head.
_UNREAD_BYTES, _UNREAD_S = 64 * 1024, 1

_ID_BYTES = 16
_MAX_CLIENT_ID = 128
_UNPRINTABLE = re.compile(rb"[^\x20-\x7e]")
_LENGTH_DIGITS = 20
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMiddleware:
    """ASGI middleware; must be Tenora's outermost one."""

    def __init__(self, app: ASGIApp, limits: LimitSettings, batch: BatchSettings) -> None:
        self._app = app
        self._limits, self._batch = limits, batch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._limits, self._batch)
        started = perf_counter()
        try:
            if (refusal := exchange.read_head()) is not None:
                await exchange.answer(refusal)
            else:
                await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            pass  # logged with status 499
        except Exception as error:
            logger.exception("Request failed with an unexpected error")
            if exchange.status:
                # Part of the answer is sent: only a broken connection shows the client that it is incomplete.
                raise
            await exchange.answer(error)
        finally:
            exchange.ended(perf_counter() - started)


class _Exchange:
    """One request and its response, as RequestMiddleware sees them."""

    __slots__ = (
        "_cap",
        "_context",
        "_decompressor",
        "_gateway",
        "_headers",
        "_own_headers",
        "_pace",
        "_read",
        "_receive",
        "_scope",
        "_send",
        "_takes_files",
        "_unread",
        "status",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: LimitSettings, batch: BatchSettings) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._gateway: Gateway = scope["state"]["gateway"]
        file_cap = _file_cap(scope, limits, batch)
        self._takes_files, self._cap = file_cap is not None, file_cap or limits.body_bytes
        self._read = 0
        self._pace: BodyPace | None = BodyPace(limits)
        self._decompressor: Decompressor | None = None
        #: True while a small body has not been read to its end.
        self._unread = False
        self.status = 0
        request_id = secrets.token_hex(_ID_BYTES)
        self._context = RequestContext(request_id, confidential=scope["path"] in _PROMPT_PATHS)
        CURRENT.set(self._context)
        if (tracer := scope["state"].get("tracer")) and scope["path"] not in _POLLED:
            begin_trace(self._context, tracer, _header(scope, b"traceparent"))
        scope["state"]["request_id"] = request_id
        self._headers = [(b"x-request-id", request_id.encode())]
        if scope["path"] in ANTHROPIC_PATHS:
            # Anthropic's client reads the id from this header.
            self._headers.append((b"request-id", request_id.encode()))
        self._own_headers = len(self._headers)

    def read_head(self) -> Exception | None:
        """Read the request's headers and record the client's request id.

        Returns:
            The error to answer with if no route may run, else None.
        """
        if self._scope["path"].endswith("\n"):
            # Starlette would match the path without the newline, but path checks elsewhere would not.
            return HTTPException(HTTPStatus.NOT_FOUND)
        refusal: Exception | None = self._scope["state"].get(REFUSED)
        encodings, has_body, is_small = list[bytes](), False, True
        for name, value in self._scope["headers"]:
            if name == b"content-length":
                refusal = refusal or self._announced(value)
                has_body = has_body or value.strip(b"0") != b""
                is_small = refusal is None and int(value) <= _UNREAD_BYTES
            elif name == b"transfer-encoding":
                has_body = True
            elif name == b"expect":
                # The client sends its body only after the server asks for it.
                is_small = False
            elif name == b"content-encoding":
                encodings.append(value)
            elif name == b"x-request-id":
                shown = _UNPRINTABLE.sub(b"", value)[:_MAX_CLIENT_ID]
                self._headers[self._own_headers :] = [(b"x-client-request-id", shown)]
        if encodings and has_body:
            refusal = refusal or self._encoded(b",".join(encodings))
        self._unread = has_body and is_small and refusal is None
        return refusal

    def _announced(self, length: bytes) -> Exception | None:
        # Python refuses to parse integers of thousands of digits.
        if len(length) > _LENGTH_DIGITS:
            return InvalidRequest(
                f"content-length has {len(length)} digits; the limit is {_LENGTH_DIGITS}.", param="content-length"
            )
        return self._over_cap(int(length), announced=True)

    def _encoded(self, header: bytes) -> Exception | None:
        encoding = encoding_of(header)
        if encoding is None:
            return None
        if self._takes_files:
            message = f"{NAME} {encoding[:40]!r} is not supported for files. Send them without it."
            return UnsupportedEncoding(message, param=NAME)
        try:
            self._decompressor = Decompressor(encoding, self._cap)
        except UnsupportedEncoding as error:
            return error
        return None

    async def receive(self) -> Message:
        """Pass the body on, enforcing its cap and its minimum rate; a chunked body announces no length."""
        message = await (self._receive() if self._pace is None else self._pace.next(self._receive))
        if message["type"] == "http.request":
            if not message.get("more_body", False):
                self._pace, self._unread = None, False
            self._read += len(message.get("body", b""))
            if (too_large := self._over_cap(self._read)) is not None:
                raise too_large
            if self._decompressor is not None:
                plain = self._decompressor.feed(message.get("body", b""), last=not message.get("more_body", False))
                message = {**message, "body": plain}
        return message

    async def _read_rest(self) -> None:
        """Drain a small body."""
        self._unread = False
        rest = _UNREAD_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_UNREAD_S):
                while rest > 0:
                    message = await self._receive()
                    if not message.get("more_body", False):
                        return
                    rest -= len(message["body"])

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._unread:
                await self._read_rest()
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._headers]
            if self._gateway.readiness.leaving:
                message["headers"].append(_CLOSE)
        await self._send(message)

    async def answer(self, error: Exception) -> None:
        """Answer with an error that no route has handled."""
        await error_response(self._scope["path"], error)(self._scope, self._receive, self.send)

    def ended(self, duration_s: float) -> None:
        """Record metrics, trace and access log of the request. The log holds no text from the client."""
        method, route, status = _method(self._scope), _route(self._scope), self.status or CLIENT_CLOSED_REQUEST
        self._gateway.metrics.observe(method, route, status, duration_s, self._context.code)
        self._trace(method, route, status)
        # Successful polls are logged at debug level only.
        level = logging.DEBUG if route in _POLLED and status < HTTPStatus.BAD_REQUEST else logging.INFO
        if access.isEnabledFor(level):
            fields = {"method": method, "route": route, "status": status, "duration_s": round(duration_s, 6)}
            if self._context.code:
                fields["code"] = self._context.code
            access.log(level, "%s %s %d", method, route, status, extra={"fields": fields})

    def _trace(self, method: str, route: str, status: int) -> None:
        context, span = self._context, self._context.span
        if not span.is_recording():
            return
        span.update_name(f"{method} {route}")
        span.set_attribute("http.request.method", method)
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        span.set_attribute("tenora.request_id", context.request_id)
        if context.key_id:
            span.set_attribute("tenora.tenant", context.tenant or "")
            span.set_attribute("tenora.key_id", context.key_id)
        # Following HTTP semantic conventions, a client error is not an error of the server's span.
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or (status < HTTPStatus.BAD_REQUEST and context.code):
            mark_failed(span, context.code or str(status))
        span.end()

    def _over_cap(self, size: int, *, announced: bool = False) -> TooLarge | None:
        if size <= self._cap:
            return None
        if announced:
            return TooLarge(f"The body has {size} bytes; the limit is {self._cap} bytes.", param="body")
        return TooLarge(f"The body is larger than the limit of {self._cap} bytes.", param="body")


def _file_cap(scope: Scope, limits: LimitSettings, batch: BatchSettings) -> int | None:
    """Return the cap in bytes of a body that holds files, or None for any other body."""
    path: str = scope["path"]
    if scope["method"] == "POST" and path.endswith("/versions") and _UPLOAD_PATH.fullmatch(path):
        return limits.config_bytes + limits.weights_bytes + _MULTIPART_BYTES
    if scope["method"] == "POST" and path.endswith("/validate") and _PREFLIGHT_PATH.fullmatch(path):
        return limits.config_bytes + HEAD_BYTES + _MULTIPART_BYTES
    if scope["method"] == "POST" and path == _BATCH_FILE_PATH:
        return batch.file_bytes + _FORM_BYTES
    if scope["method"] == "POST" and _FILE_PART_PATH.fullmatch(path):
        return MAX_FILE_PART_BYTES + _FORM_BYTES
    if scope["method"] == "PUT" and _PART_PATH.fullmatch(path):
        return MAX_PART_BYTES
    return None


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in _METHODS else "other"


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "none")
