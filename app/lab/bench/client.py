"""Closed-loop load generator for completions, streamed or not, the same for every server.

It runs as a separate process (``python -m app.lab.bench.client``), which reads a plan as JSON from stdin and prints
samples as JSON. So it shares no interpreter with a server.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.lab.bench.wire import Answer, Connection, LoadError, completion, http_request

_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Plan:
    """One round against one server.

    Attributes:
        headers: headers of every request.
        prompts: token ids, one list per request, sent in this order.
        concurrency: number of requests in flight at any time.
        output_tokens: exact number of tokens of every answer.
        stream: True to stream tokens. Otherwise there is no inter-token latency, and the TTFT is that of the answer.
    """

    host: str
    port: int
    path: str
    headers: dict[str, str]
    model: str
    prompts: list[list[int]]
    concurrency: int
    output_tokens: int
    stream: bool = True


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one round.

    Attributes:
        wall_s: seconds from the first request to the end of the last answer.
        ttft_s: seconds until the first event with a token, per request.
        gaps_s: seconds between events with tokens within a request, for all requests together.
        output_tokens: total number of generated tokens, as the server counted them.
    """

    wall_s: float
    ttft_s: list[float]
    gaps_s: list[float]
    output_tokens: int


async def run(plan: Plan) -> Samples:
    """Send all prompts of the plan, ``plan.concurrency`` at a time.

    Raises:
        LoadError: a request failed.
        OSError: the server does not listen.
    """
    requests = [_request(plan, prompt) for prompt in reversed(plan.prompts)]
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(Connection, plan.host, plan.port))[1] for _ in range(plan.concurrency)]
    answers: list[Answer] = []

    async def work(connection: Connection) -> None:
        while requests:
            answer = await connection.ask(requests.pop())
            if (tokens := answer.tokens()) != plan.output_tokens:
                raise LoadError(f"The answer has {tokens} tokens instead of {plan.output_tokens}.")
            answers.append(answer)

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
    gaps = [after - before for answer in answers for before, after in pairwise(answer.arrivals[:-1])]
    ttft = [answer.arrivals[0] - answer.sent for answer in answers]
    return Samples(time.perf_counter() - started, ttft, gaps, plan.output_tokens * len(answers))


def _request(plan: Plan, prompt: list[int]) -> bytes:
    body = completion(plan.model, prompt, plan.output_tokens, stream=plan.stream)
    return http_request(plan.host, plan.port, plan.path, plan.headers, body)


def drive(plan: Plan) -> Samples:
    """Run the plan in a separate process.

    Raises:
        LoadError: a request failed.
    """
    return Samples(**run_generator("app.lab.bench.client", asdict(plan)))


def run_generator(module: str, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Run a load generator, ``python -m module``, and return the JSON that it printed.

    Raises:
        LoadError: the generator failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", module], cwd=_ROOT, input=json.dumps(plan), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LoadError(done.stderr[-2000:])
    result: dict[str, Any] = json.loads(done.stdout)
    return result


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
