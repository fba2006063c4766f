"""Minimal HTTP/1.1 client of the load generators: one POST per request, timestamps at the arrival of bytes."""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

_DONE = b"data: [DONE]"
_OK = 200


class LoadError(RuntimeError):
    """The server refused a request, closed the connection or gave a wrong answer."""


class Body:
    """Incremental parser of an HTTP/1.1 response, chunked or with a content length.

    Attributes:
        status: HTTP status, None until the head is complete.
        headers: headers with lower-case names.
        events: complete server-sent events of a status 200 that are not consumed yet.
        done: True after the end of the response.
    """

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._content = bytearray()
        self._chunked = False
        self._missing = 0
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.events: list[bytes] = []
        self.done = False

    def feed(self, data: bytes) -> None:
        """Parse received bytes.

        Raises:
            LoadError: the bytes are not a valid response.
        """
        self._bytes += data
        if self.status is None and not self._read_head():
            return
        if self._chunked:
            self._read_chunks()
        else:
            self._content += self._bytes[: self._missing]
            self._missing -= min(self._missing, len(self._bytes))
            self._bytes.clear()
            self.done = self._missing == 0
        if self.status == _OK:
            self._take_events()

    @property
    def rest(self) -> bytes:
        """Content outside of events: the whole body of a response that is not an event stream."""
        return bytes(self._content)

    def _read_head(self) -> bool:
        end = self._bytes.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = self._bytes[:end].decode("latin-1").split("\r\n")
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if not first.startswith("HTTP/1.1 ") or not (self._chunked or "content-length" in self.headers):
            raise LoadError(self._bytes.decode(errors="replace")[:2000])
        self.status, self._missing = int(first[9:12]), int(self.headers.get("content-length", 0))
        del self._bytes[: end + 4]
        return True

    def _read_chunks(self) -> None:
        while (end := self._bytes.find(b"\r\n")) >= 0:
            size = int(self._bytes[:end], 16)
            if len(self._bytes) < end + 2 + size + 2:
                break
            self._content += self._bytes[end + 2 : end + 2 + size]
            del self._bytes[: end + 2 + size + 2]
            if size == 0:
                self.done = True
                break

    def _take_events(self) -> None:
        *events, rest = self._content.split(b"\n\n")
        if events:
            self.events += [bytes(event) for event in events]
            self._content = bytearray(rest)


class Answer:
    """Answer to one request, complete or partial. Times are those of ``time.perf_counter``.

    Attributes:
        sent: time at which the request was sent.
        arrivals: arrival times of events, including the last one with the usage, excluding ``[DONE]``.
        last: last event, or the whole body of an answer without events.
    """

    def __init__(self) -> None:
        self.sent = time.perf_counter()
        self.arrivals: list[float] = []
        self.last = b""
        self.body = Body()

    def feed(self, data: bytes) -> bool:
        """Parse received bytes and return whether the answer is complete.

        Raises:
            LoadError: the bytes are not a valid response.
            ValueError: the size of a chunk is not a number.
        """
        now = time.perf_counter()
        self.body.feed(data)
        for event in self.body.events:
            if event != _DONE:
                self.arrivals.append(now)
                self.last = event
        self.body.events.clear()
        if self.body.done and not self.last:
            self.arrivals, self.last = [now], self.body.rest
        return self.body.done

    def accepted(self) -> str:
        """Return the last event, or the whole body of an answer without events.

        Raises:
            LoadError: the status is not 200.
        """
        text = self.last.removeprefix(b"data: ").decode(errors="replace")
        if self.body.status != _OK:
            raise LoadError(f"HTTP/1.1 {self.body.status} {text[:500]}")
        return text

    def tokens(self) -> int:
        """Return the number of generated tokens as the server counted them.

        Raises:
            LoadError: the status is not 200, or the last event has no usage.
        """
        text = self.accepted()
        try:
            return int(json.loads(text)["usage"]["completion_tokens"])
        except (KeyError, TypeError, ValueError):
            raise LoadError(f"The answer ended with {text[:500]}") from None


class Connection(asyncio.Protocol):
    """Keep-alive connection with at most one request in flight.

    Attributes:
        answer: answer to the last request, possibly partial.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[None] | None = None
        self.answer = Answer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream protocol is given a Transport

    def data_received(self, data: bytes) -> None:
        try:
            done = self.answer.feed(data)
        except (LoadError, ValueError) as error:
            self._fail(error)
            return
        if done and self._answered and not self._answered.done():
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(LoadError(f"The server closed the connection: {exc}"))

    @property
    def open(self) -> bool:
        """True if a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> Answer:
        """Send one request and return its answer with any status.

        Raises:
            LoadError: the connection broke, or the response is invalid.
        """
        if self._transport is None or not self.open:
            raise LoadError("The server closed the connection.")
        self._answered = asyncio.get_running_loop().create_future()
        self.answer = Answer()
        self._transport.write(request)
        await self._answered
        return self.answer

    def close(self) -> None:
        self._answered = None
        if self._transport:
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        if self._answered and not self._answered.done():
            self._answered.set_exception(error if isinstance(error, LoadError) else LoadError(str(error)))


def http_request(host: str, port: int, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> bytes:
    """Serialise a POST of JSON over HTTP/1.1."""
    content = json.dumps(body).encode()
    sent = {
        "host": f"{host}:{port}",
        "content-type": "application/json",
        "content-length": str(len(content)),
        **headers,
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def completion(model: str, prompt: list[int], output_tokens: int, *, stream: bool = True) -> dict[str, Any]:
    """Body of a greedy completion with exactly ``output_tokens`` tokens."""
    body = {"model": model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    return body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})
