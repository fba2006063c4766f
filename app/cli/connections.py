"""Uvicorn's HTTP protocol with an end to every wait for a client.

Uvicorn bounds neither a request's head nor the time that it takes, and waits for ever for the rest of a body and for a
reader who does not read. One client could fill memory with a header, or hold connections, requests and what these
hold without sending or reading a byte.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.errors import openai_body, problem_of
from app.errors import Busy, TenoraError, TooLarge
from app.settings import LimitSettings

#: The application's own patience with an upload ends first, and has words for it.
_SLACK_S = 5
_RETRY_AFTER_S = 5
#: Of a connection's life, until its first request is there.
_FIRST_S = 3


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a connection may take.

    Attributes:
        connections: open at the same time.
        head_bytes, head_s: of a request's line and headers, and until they are there.
        body_s: for a body's next bytes.
        unread_s: that an answer may wait for its reader.
    """

    connections: int
    head_bytes: int
    head_s: float
    body_s: float
    unread_s: float

    @classmethod
    def of(cls, limits: LimitSettings) -> "Bounds":
        return cls(
            limits.connections,
            limits.header_bytes,
            limits.header_seconds,
            limits.upload_idle_seconds + _SLACK_S,
            limits.unread_seconds,
        )


class BoundedProtocol(HttpToolsProtocol):
    """One connection; whoever runs the server calls :meth:`sweep` every few seconds."""

    def __init__(self, *arguments: Any, bounds: Bounds, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._bounds = bounds
        self._in_head, self._head_bytes = True, 0
        #: When the client last did what is waited for.
        self._heard = self.loop.time()
        self._unread_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._bounds.connections:
            error = Busy(f"{self._bounds.connections} connections are open already", retry_after=_RETRY_AFTER_S)
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, error)

    def data_received(self, data: bytes) -> None:
        if not self._in_head or not self._head_bytes:
            # The bytes of a head do not lengthen its time.
            self._heard = self.loop.time()
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self._bounds.head_bytes:
            error = TooLarge(f"headers: found more, allowed {self._bounds.head_bytes} bytes", param="headers")
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, error)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_since = None

    def shutdown(self) -> None:
        """Uvicorn's, but a connection that has just come may bring its request yet: we still took some when it came."""
        if self.cycle is None and not self.transport.is_closing():
            self.loop.call_later(_FIRST_S, super().shutdown)
        else:
            super().shutdown()

    def sweep(self, now: float) -> None:
        """End the connection if its client lets it wait for too long; ``now`` is the loop's time."""
        if self._unread_since is not None:
            if now - self._unread_since > self._bounds.unread_s:
                self.transport.abort()
            return
        waited = now - self._heard
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering:
            if self.cycle.more_body and not self.flow.read_paused and waited > self._bounds.body_s:
                self.transport.abort()
        elif self.timeout_keep_alive_task is None and waited > self._bounds.head_s:
            self.transport.close()

    def _refuse(self, status: HTTPStatus, error: TenoraError) -> None:
        body = json.dumps(openai_body(problem_of(error))).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        if error.retry_after:
            headers["retry-after"] = str(error.retry_after)
        lines = [f"HTTP/1.1 {status} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self.transport.close()


def bounded(limits: LimitSettings) -> Callable[..., asyncio.Protocol]:
    """What uvicorn makes a connection's protocol with."""
    return partial(BoundedProtocol, bounds=Bounds.of(limits))
