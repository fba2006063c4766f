"""HTTP protocol for uvicorn with bounds on what a client may send and on idle time.

It closes these gaps of uvicorn:

- The head, the trailers and the pipeline have no size limit.
- Waiting for a body, or for a client to read its answer, has no timeout.
- A body that comes with ``Upgrade`` is parsed as the next request.

When connections run low, connections that wait for their clients are closed.
"""

import asyncio
import heapq
import json
import logging
import resource
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.api.errors import openai_body, problem_of
from app.api.middleware import REFUSED
from app.domain.errors import Busy, TenoraError, TooLarge
from app.settings import LimitSettings

logger = logging.getLogger(__name__)

#: Seconds added to the upload idle timeout. The application's timeout ends first and gives a better error message.
_SLACK_S = 5
_RETRY_AFTER_S = 5
#: Grace period at shutdown for a new connection to send its first request, in seconds.
_FIRST_S = 3
#: Maximum headers of one request. Browsers and clients send about 20.
_HEADERS = 256
#: Maximum requests that wait behind another one on the same connection.
_PIPELINED = 8
#: Bytes of chunk framing allowed for each byte of a body. A chunk of one byte has five.
_FRAMING_PER_BYTE = 16
#: Lingering close after an answer to an unfinished request: seconds and bytes of input to read and drop before the
#: connection closes. A client that still writes would otherwise lose the answer.
_LINGER_S, _LINGER_BYTES = 1, 512 * 1024
#: Connections reserved for health, metrics and administration.
_KEPT = 64
_KEPT_PATHS = ("/health", "/metrics", "/admin/")
#: Open files that the process needs in addition to its connections.
_OTHER_FILES = 1024


class _Overlong(Exception):
    """The head exceeds its bounds. Raised in a parser callback."""


class _Unreadable(Exception):
    """The server does not support this request. Raised in a parser callback."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on connections.

    Attributes:
        connections: maximum number of open connections.
        kept: number of these that are reserved for health, metrics and administration.
        head_bytes, head_s: maximum size of a request's line and headers, and the timeout for them in seconds.
        body_s: timeout for the next bytes of a body, in seconds.
        unread_s: time that an answer may wait for its reader, in seconds.
    """

    connections: int
    kept: int
    head_bytes: int
    head_s: float
    body_s: float
    unread_s: float

    @classmethod
    def of(cls, limits: LimitSettings) -> "Bounds":
        return cls(
            limits.connections,
            min(_KEPT, limits.connections // 8),
            limits.header_bytes,
            limits.header_seconds,
            limits.upload_idle_seconds + _SLACK_S,
            limits.unread_seconds,
        )

    @property
    def shared(self) -> int:
        """Number of connections for requests of every kind."""
        return self.connections - self.kept


class BoundedProtocol(HttpToolsProtocol):
    """One connection. The server calls :meth:`sweep` every few seconds.

    Attributes:
        progress_at: loop time of the client's last progress, or of the end of its last answer.
    """

    def __init__(self, *arguments: Any, bounds: Bounds, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._bounds = bounds
        self._in_head = True
        #: Bytes of heads, chunk framing and trailers that no body bytes have offset.
        self._framing = 0
        #: True once further input is dropped, with the count of dropped bytes.
        self._discarding, self._dropped = False, 0
        #: Keep-alive, as the request in the parser asked for it.
        self._stays_open = True
        #: The request that is being answered.
        self._answered: RequestResponseCycle | None = None
        #: True for a connection beyond those for requests of every kind.
        self._extra = False
        self.progress_at = self.loop.time()
        self._unread_since: float | None = None

    @property
    def address(self) -> str:
        """The peer's address."""
        return self.client[0] if self.client else ""

    @property
    def waiting_since(self) -> float | None:
        """Loop time since which the connection waits for the client alone. None while a request is being answered."""
        if self._unread_since is not None:
            return self._unread_since
        cycle = self._answered
        if cycle is None or cycle.response_complete or (cycle.more_body and not self.flow.read_paused):
            return self.progress_at
        return None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) <= self._bounds.shared:
            return
        _close_idle(self._others(), max(1, self._bounds.shared // _KEPT))
        self._extra = len(self.connections) > self._bounds.shared
        if len(self.connections) > self._bounds.connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, self._no_place())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.pipeline.clear()
        if self._answered is not None:
            _hang_up(self._answered)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            self._dropped += len(data)
            if self._dropped > _LINGER_BYTES:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        if not self._in_head or not self._framing:
            # The bytes of a head do not extend its timeout.
            self.progress_at = self.loop.time()
        self._framing += len(data)
        self._read(data)

    def _read(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            plain = self._plain_head()
            # The old parser reads nothing more if the head has "Connection: close".
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._read(plain + data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            overlong = isinstance(error.__context__, _Overlong)
            self._give_up(self._refuse_head if overlong else self._refuse_bytes)
        else:
            if self._framing > self._bounds.head_bytes:
                self._give_up(self._refuse_head)

    def _plain_head(self) -> bytes:
        """Rebuild the head without its Upgrade header: the parser reads no body after one."""
        version = self.parser.get_http_version().encode()
        headers = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        return b"".join((b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, version), *headers, b"\r\n"))

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _PIPELINED:
            raise _Unreadable
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # Drop trailers. Uvicorn would add them to the headers of the request that is being answered.
        if self._in_head:
            super().on_header(name, value)
            if len(self.headers) > _HEADERS:
                raise _Overlong

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self._bounds.head_bytes:
            raise _Overlong
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Unreadable
            return
        self._in_head, self._framing = False, 0
        super().on_headers_complete()
        # An answer sent before the end of its request closes the connection. Its headers announce that.
        cycle = self.cycle
        self._stays_open, cycle.keep_alive = cycle.keep_alive, False
        cycle.transport = _Lingering(self.transport, self._linger)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._framing = max(0, self._framing - _FRAMING_PER_BYTE * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._in_head, self._framing = True, 0
        self.cycle.transport = self.transport
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._stays_open

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        if self._extra:
            self._extra = len(self.connections) > self._bounds.shared
            if self._extra and not cycle.scope["path"].startswith(_KEPT_PATHS):
                cycle.scope["state"][REFUSED] = self._no_place()
                self._stays_open = cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.progress_at = self.loop.time()
        super().on_response_complete()
        if self._discarding:
            self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_since = None

    def shutdown(self) -> None:
        """Shut down like uvicorn, but give a new connection time to send its first request.

        The server was still accepting connections when this one arrived.
        """
        self._stays_open = False
        if self.cycle is None and not self.transport.is_closing():
            self.loop.call_later(_FIRST_S, super().shutdown)
        else:
            super().shutdown()

    def sweep(self, now: float) -> None:
        """Close the connection if its client exceeded a timeout.

        Args:
            now: current time of the loop, in seconds.
        """
        if self._unread_since is not None:
            if now - self._unread_since > self._bounds.unread_s:
                self.transport.abort()
            return
        waited = now - self.progress_at
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering:
            if self.cycle.more_body and not self.flow.read_paused and waited > self._bounds.body_s:
                self.transport.abort()
        elif self.timeout_keep_alive_task is None and waited > self._bounds.head_s:
            self.transport.close()

    def drop(self) -> None:
        """Close this connection to make room for another one."""
        # Uvicorn removes it from the set a moment later. More connections may arrive before that.
        self.connections.discard(self)
        self.transport.abort()

    def _others(self) -> Iterable["BoundedProtocol"]:
        return [other for other in self.connections if isinstance(other, BoundedProtocol) and other is not self]

    def _give_up(self, refuse: Callable[[], None]) -> None:
        """Stop reading, send the answers that are due, and close the connection.

        Args:
            refuse: sends an error. Called only if no other answer is due: a request has one answer.
        """
        self._discarding = True
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            refuse()
        elif not cycle.more_body:
            cycle.keep_alive = False
        elif cycle is not self._answered:
            self.pipeline.popleft()
            due = self.pipeline[0][0] if self.pipeline else self._answered
            if due is not None:
                self.cycle = due
                due.keep_alive = False
        else:
            _hang_up(cycle)
            if cycle.response_started:
                self.transport.close()
            else:
                refuse()

    def _refuse_bytes(self) -> None:
        self.send_400_response("Invalid HTTP request received.")

    def _refuse_head(self) -> None:
        limits = f"{self._bounds.head_bytes} bytes and {_HEADERS} headers"
        error = TooLarge(f"The headers of the request exceed the limits of {limits}.", param="headers")
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, error)

    def _no_place(self) -> Busy:
        return Busy(
            f"The server has reached its limit of {self._bounds.connections} connections. Try again later.",
            retry_after=_RETRY_AFTER_S,
        )

    def _refuse(self, status: HTTPStatus, error: TenoraError) -> None:
        body = json.dumps(openai_body(problem_of(error))).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        if error.retry_after:
            headers["retry-after"] = str(error.retry_after)
        lines = [f"HTTP/1.1 {status} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self.transport.close()

    def _linger(self) -> None:
        if self._discarding or self.transport.is_closing():
            self.transport.close()
            return
        self._discarding = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)


class _Lingering:
    """Transport of one answer. Its ``close`` ends the writing side and lingers."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, linger: Callable[[], None]) -> None:
        self.write, self.is_closing, self.close = transport.write, transport.is_closing, linger


def _hang_up(cycle: RequestResponseCycle) -> None:
    """Signal to the application that the client has disconnected."""
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()


def _close_idle(connections: Iterable[BoundedProtocol], limit: int) -> None:
    """Close idle connections: the longest wait of the address with the most connections first.

    Args:
        connections: candidates. Only those that wait for their clients are closed.
        limit: maximum number of connections to close.
    """
    counts: Counter[str] = Counter()
    waiting: dict[str, list[tuple[float, int, BoundedProtocol]]] = defaultdict(list)
    for number, connection in enumerate(connections):
        counts[connection.address] += 1
        if (since := connection.waiting_since) is not None:
            waiting[connection.address].append((-since, number, connection))
    for queue in waiting.values():
        queue.sort()
    largest = [(-counts[address], address) for address in waiting]
    heapq.heapify(largest)
    closed = 0
    while largest and closed < limit:
        count, address = largest[0]
        waiting[address].pop()[-1].drop()
        closed += 1
        if waiting[address]:
            heapq.heapreplace(largest, (count + 1, address))
        else:
            heapq.heappop(largest)


def bounded(limits: LimitSettings) -> Callable[..., asyncio.Protocol]:
    """Factory of connection protocols for uvicorn."""
    return partial(BoundedProtocol, bounds=Bounds.of(limits))


def allow_files(limits: LimitSettings) -> None:
    """Raise the soft limit of open files to the need of the connections, up to the hard limit."""
    needed = limits.connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        if hard < needed:
            logger.warning(
                "%d connections need %d open files, but this process may open only %d. "
                "Raise its limit (ulimit -n) or lower TENORA_LIMITS__CONNECTIONS.",
                limits.connections,
                needed,
                hard,
            )
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
