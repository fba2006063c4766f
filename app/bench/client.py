"""The load generator, the same for every server: a closed loop of streamed completions.

Runs as a process of its own (``python -m app.bench.client``: a plan as JSON on stdin, samples as JSON on
stdout), so that it shares no interpreter with a server. It speaks just enough HTTP/1.1 to cost little
beside what it measures, and takes the time when bytes arrive, before it reads them.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

_DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Plan:
    """One round against one server.

    Attributes:
        headers: sent with every request.
        prompts: token ids, one list per request; answered in this order.
        concurrency: requests in flight at any time.
        output_tokens: every answer has exactly so many.
    """

    host: str
    port: int
    path: str
    headers: dict[str, str]
    model: str
    prompts: list[list[int]]
    concurrency: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Samples:
    """What one round measured.

    Attributes:
        wall_s: from the first request to the last answer's end, in seconds.
        ttft_s: per request, until the first event with a token arrived.
        gaps_s: between the events of each request that carry tokens, all requests together.
        output_tokens: tokens generated in all, as the server counted them.
    """

    wall_s: float
    ttft_s: list[float]
    gaps_s: list[float]
    output_tokens: int


class LoadError(RuntimeError):
    """The server refused a request, closed the connection, or answered otherwise than asked."""


class Body:
    """Takes a chunked HTTP/1.1 answer apart as it arrives.

    Attributes:
        events: server-sent events that are complete and not yet taken.
        done: the last chunk has come.
    """

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._content = bytearray()
        self._in_body = False
        self.events: list[bytes] = []
        self.done = False

    def feed(self, data: bytes) -> None:
        """Take in what arrived.

        Raises:
            LoadError: the status is not 200, or the framing is not chunked.
        """
        self._bytes += data
        if self._in_body or self._read_head():
            self._read_chunks()

    def _read_head(self) -> bool:
        end = self._bytes.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._bytes[:end]).lower()
        if not head.startswith(b"http/1.1 200") or b"transfer-encoding: chunked" not in head:
            raise LoadError(bytes(self._bytes).decode(errors="replace")[:2000])
        del self._bytes[: end + 4]
        self._in_body = True
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
        *events, rest = self._content.split(b"\n\n")
        if events:
            self.events += [bytes(event) for event in events]
            self._content = bytearray(rest)


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request in flight at most."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._body = Body()
        self._answered: asyncio.Future[None] | None = None
        self._arrivals: list[float] = []
        self._last: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream protocol is given a Transport

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        try:
            self._body.feed(data)
        except (LoadError, ValueError) as error:
            self._fail(error)
            return
        for event in self._body.events:
            if event != _DONE:
                self._arrivals.append(now)
                self._last = event
        self._body.events.clear()
        if self._body.done and self._answered and not self._answered.done():
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(LoadError(f"the server closed the connection: {exc}"))

    async def ask(self, request: bytes) -> tuple[float, list[float], dict[str, Any]]:
        """Send one request; returns when it was sent, when each event came, and the last event.

        The last event is the one with the usage, and carries no token.
        """
        if self._transport is None or self._transport.is_closing():
            raise LoadError("the server closed the connection")
        self._body, self._arrivals = Body(), []
        self._answered = asyncio.get_running_loop().create_future()
        sent = time.perf_counter()
        self._transport.write(request)
        await self._answered
        return sent, self._arrivals, json.loads(self._last.removeprefix(b"data: "))

    def close(self) -> None:
        self._answered = None
        if self._transport:
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        if self._answered and not self._answered.done():
            self._answered.set_exception(error)


def request_bytes(plan: Plan, prompt: list[int]) -> bytes:
    """One HTTP request: greedy, streamed, of exactly ``plan.output_tokens`` tokens."""
    body = json.dumps(
        {
            "model": plan.model,
            "prompt": prompt,
            "max_tokens": plan.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    headers = {
        "host": f"{plan.host}:{plan.port}",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **plan.headers,
    }
    lines = [f"POST {plan.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def run(plan: Plan) -> Samples:
    """Answer every prompt of the plan, ``plan.concurrency`` at a time.

    Raises:
        LoadError: any request failed.
        OSError: the server does not listen.
    """
    requests = [request_bytes(plan, prompt) for prompt in plan.prompts]
    requests.reverse()
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(Connection, plan.host, plan.port))[1] for _ in range(plan.concurrency)]
    ttft: list[float] = []
    gaps: list[float] = []
    tokens = 0

    async def work(connection: Connection) -> None:
        nonlocal tokens
        while requests:
            sent, arrivals, last = await connection.ask(requests.pop())
            tokens += _counted(last, plan)
            ttft.append(arrivals[0] - sent)
            gaps.extend(after - before for before, after in pairwise(arrivals[:-1]))

    started = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as workers:
            for connection in connections:
                workers.create_task(work(connection))
    except* (LoadError, OSError) as group:
        raise LoadError(str(group.exceptions[0])) from None
    finally:
        for connection in connections:
            connection.close()
    return Samples(time.perf_counter() - started, ttft, gaps, tokens)


def _counted(last: dict[str, Any], plan: Plan) -> int:
    usage = last.get("usage") or {}
    if usage.get("completion_tokens") != plan.output_tokens:
        raise LoadError(f"asked for {plan.output_tokens} tokens, the answer ended with {json.dumps(last)[:500]}")
    return plan.output_tokens


def main() -> int:
    plan = Plan(**json.load(sys.stdin))
    try:
        samples = asyncio.run(run(plan))
    except (LoadError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    json.dump(asdict(samples), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
