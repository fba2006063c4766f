"""Open-loop load generator: requests start when they are due, regardless of the state of earlier ones.

It runs as a separate process (``python -m app.lab.bench.open_loop``), which reads a plan as JSON from stdin and prints
samples as JSON. A failed request is a sample with a reason and does not end the run.

A request may wait for the end of another one (``after``), which makes closed loops. It may also be any other call to
the server (``path``, ``body``).
"""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import uvloop

from app.lab.bench.client import run_generator
from app.lab.bench.wire import Answer, Connection, LoadError, completion, http_request

#: Maximum idle time of a reused connection, in seconds. vLLM's server closes connections idle for 5 s, which a client
#: would see as a failed request.
_KEEP_ALIVE_S = 3.0
#: Reason of a request that was not due before the plan's ``stop_s``.
NOT_SENT = "not sent"


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a plan.

    Attributes:
        at: send time in seconds after the start.
        model: name of the adapter or the base model.
        headers: HTTP headers.
        prompt: token ids.
        output_tokens: exact number of tokens of the answer, which is greedy and streamed.
        after: position in the plan of a request that must end first.
        path: path of the URL.
        body: JSON body in place of a completion. Its answer only needs status 200.
    """

    at: float
    model: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    prompt: Sequence[int] = ()
    output_tokens: int = 1
    after: int | None = None
    path: str = "/v1/completions"
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Run against one server.

    Attributes:
        drain_s: seconds after the last start in which answers still count. Later ones have failed.
        stop_s: time of the last send in seconds after the start, None to send everything.
    """

    port: int
    requests: Sequence[Request]
    drain_s: float = 300.0
    stop_s: float | None = None
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Sample:
    """Outcome of one request. Times are seconds since the run's start.

    Attributes:
        sent: send time, None if the request was not sent.
        first: arrival time of the first token, None if none arrived.
        end: time at which the answer ended or failed.
        gaps_ms: milliseconds between events with tokens.
        tokens: tokens of a complete answer, as the server counted them.
        why: reason of a failure, None for a correct answer.
        load_ms: milliseconds of the adapter's load, as reported by the server (``x-tenora-load-ms``).
    """

    sent: float | None = None
    first: float | None = None
    end: float | None = None
    gaps_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    why: str | None = None
    load_ms: float | None = None

    @property
    def ok(self) -> bool:
        return self.why is None

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the send to the first token, None if there was none."""
        return None if self.first is None or self.sent is None else self.first - self.sent


@dataclass(frozen=True, slots=True)
class Run:
    """Samples of a plan's requests in their order.

    Attributes:
        wall_s: seconds from the start to the end of the last answer.
        cpu_s: CPU seconds of the generator.
        started: time of the start by ``time.perf_counter``, which all processes of a machine share on Linux.
    """

    wall_s: float
    cpu_s: float
    samples: list[Sample]
    started: float = 0.0


def drive(plan: Plan) -> Run:
    """Run the plan in a separate process.

    Raises:
        LoadError: the generator failed. A failed request is in its sample instead.
    """
    result = run_generator("app.lab.bench.open_loop", asdict(plan))
    samples = [Sample(**sample) for sample in result["samples"]]
    return Run(result["wall_s"], result["cpu_s"], samples, result["started"])


class Generator:
    """Sender of the requests of one plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._bytes = [_bytes(plan, request) for request in plan.requests]
        self._ended: dict[int, asyncio.Event] = {
            request.after: asyncio.Event() for request in plan.requests if request.after is not None
        }
        self._idle: list[tuple[float, Connection]] = []
        self._samples = [Sample(why=NOT_SENT)] * len(plan.requests)
        self._started = 0.0

    async def run(self) -> Run:
        """Send all requests and wait for the answers."""
        self._started = time.perf_counter()
        tasks = [
            asyncio.create_task(self._send_when_due(number))
            for number in sorted(range(len(self._bytes)), key=lambda number: self._plan.requests[number].at)
        ]
        last = max((request.at for request in self._plan.requests), default=0.0)
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=last + self._plan.drain_s)
            for task in pending:
                task.cancel()
            await asyncio.gather(*tasks)
        for _, connection in self._idle:
            connection.close()
        wall_s = max((sample.end or 0.0 for sample in self._samples), default=0.0)
        return Run(wall_s, time.process_time(), self._samples, self._started)

    async def _send_when_due(self, number: int) -> None:
        request = self._plan.requests[number]
        try:
            await asyncio.sleep(request.at - self._now())
            if request.after is not None:
                await self._ended[request.after].wait()
            if self._plan.stop_s is None or self._now() <= self._plan.stop_s:
                self._samples[number] = await self._ask(number)
        except asyncio.CancelledError:
            # Tasks are cancelled only at the end of the run. Requests that have not begun stay NOT_SENT.
            return
        finally:
            if number in self._ended:
                self._ended[number].set()

    async def _ask(self, number: int) -> Sample:
        begun = self._now()
        connection: Connection | None = None
        try:
            connection = await self._connection()
            answer = await connection.ask(self._bytes[number])
            sample = self._sample(answer, self._problem(answer, self._plan.requests[number]))
        except OSError as error:
            return Sample(sent=begun, end=self._now(), why=f"cannot connect: {error}")
        except (LoadError, asyncio.CancelledError) as error:
            if connection is None:
                return Sample(sent=begun, end=self._now(), why="no connection before the end of the run")
            connection.close()
            return self._sample(connection.answer, str(error) or "no answer before the end of the run")
        if answer.body.headers.get("connection") == "close":
            connection.close()
        else:
            self._idle.append((time.perf_counter(), connection))
        return sample

    async def _connection(self) -> Connection:
        """Return the most recently used connection if the server still has it open, else a new one."""
        while self._idle:
            since, connection = self._idle.pop()
            if time.perf_counter() - since < _KEEP_ALIVE_S and connection.open:
                return connection
            connection.close()
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Connection, self._plan.host, self._plan.port))[1]

    def _problem(self, answer: Answer, request: Request) -> str | None:
        try:
            tokens = answer.tokens() if request.body is None else answer.accepted()
        except LoadError as error:
            return str(error)
        if request.body is None and tokens != request.output_tokens:
            return f"the answer has {tokens} tokens instead of {request.output_tokens}"
        return None

    def _sample(self, answer: Answer, why: str | None) -> Sample:
        arrivals = answer.arrivals
        # The last event of a complete answer is the usage, which carries no token.
        tokens = arrivals[:-1] if len(arrivals) > 1 and why is None else arrivals
        load = answer.body.headers.get("x-tenora-load-ms")
        return Sample(
            sent=self._since_start(answer.sent),
            first=self._since_start(tokens[0]) if tokens and answer.body.status == 200 else None,
            end=self._now(),
            gaps_ms=[round(1000 * (after - before), 2) for before, after in pairwise(tokens)],
            tokens=answer.tokens() if why is None and len(arrivals) > 1 else 0,
            why=why,
            load_ms=float(load) if load else None,
        )

    def _now(self) -> float:
        return self._since_start(time.perf_counter())

    def _since_start(self, moment: float) -> float:
        return round(moment - self._started, 5)


def _bytes(plan: Plan, request: Request) -> bytes:
    body = request.body
    if body is None:
        body = completion(request.model, list(request.prompt), request.output_tokens)
    return http_request(plan.host, plan.port, request.path, request.headers, body)


def main() -> None:
    content = json.load(sys.stdin)
    plan = Plan(**(content | {"requests": [Request(**request) for request in content["requests"]]}))
    # An overloaded server keeps thousands of connections open.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    json.dump(asdict(uvloop.run(Generator(plan).run())), sys.stdout)


if __name__ == "__main__":
    main()
