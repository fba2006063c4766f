"""Client load during a fault: check every answer and remember every confirmed result."""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

OK = "ok"
#: The connection ended without an error: clients see nothing else when a server is killed.
CUT = "cut"
PROMPTS = tuple(f"[INST] {text} [/INST]" for text in ("What is sugar?", "Can you explain tea?", "Who are you?"))
TOKENS = 24
#: Seconds between two tries after a refusal. More eager clients would take CPU time from the restarting server.
_PAUSE_S = 1
_SETTLED = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of one request: ``ok``, an error's code, or ``cut``. Times are monotonic."""

    client: int
    model: str
    result: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Promise:
    """Complete answer that a client has received: its usage record must not be lost."""

    request_id: str
    unit: str


@dataclass
class Unit:
    """A tenant as its application sees it.

    Attributes:
        model: model name of its requests.
        answers: prompt -> the only right answer; filled before any fault.
    """

    slug: str
    key: str
    model: str
    answers: dict[str, str] = field(default_factory=dict)

    def body(self, prompt: str) -> dict[str, Any]:
        """Build the request, whose answer is always the same."""
        return {"model": self.model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}

    async def ask(self, http: httpx.AsyncClient, prompt: str, *, stream: bool = False) -> tuple[str, str, str]:
        """Send one request; return ``ok`` or an error's code, the text, and the request's id."""
        body, headers = self.body(prompt) | {"stream": stream}, {"authorization": f"Bearer {self.key}"}
        async with http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            content = (await answer.aread()).decode()
            request_id = answer.headers["x-request-id"]
            if answer.status_code == 503:
                assert int(answer.headers["retry-after"]) > 0
        if answer.status_code != 200:
            return _code(json.loads(content)), "", request_id
        result, text = _streamed(content) if stream else (OK, json.loads(content)["choices"][0]["text"])
        return result, text, request_id


class Load:
    """Clients of these units, each with requests in a closed loop; every other client streams.

    Leaving the context ends the clients and raises their wrong answers.
    """

    def __init__(self, url: str, units: Sequence[Unit], *, clients: int = 6) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=120, trust_env=False)
        self._units, self._clients = units, clients
        self.outcomes: list[Outcome] = []
        self.promises: list[Promise] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._ask_on(number)) for number in range(self._clients)]
        await self.settled(time.monotonic())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()
        wrong = [end for end in ends if not isinstance(end, asyncio.CancelledError)]
        if wrong and kind is None:
            raise wrong[0]

    async def until_seen(self, result: str, since: float) -> None:
        """Wait until a request has ended with this result."""
        while not self.seen(since)[result]:
            self._check()
            await asyncio.sleep(0.05)

    async def settled(self, since: float) -> float:
        """Wait until every client has several consecutive successes for requests sent after ``since``.

        Returns the seconds from ``since`` until the last failure.
        """
        while True:
            self._check()
            by_client = [[one for one in self.outcomes if one.client == number] for number in range(self._clients)]
            last = [outcomes[-_SETTLED:] for outcomes in by_client]
            if all(len(few) == _SETTLED and all(one.result == OK and one.began > since for one in few) for few in last):
                return max(
                    [one.ended - since for one in self.outcomes if one.result != OK and one.ended > since] or [0]
                )
            await asyncio.sleep(0.05)

    def seen(self, since: float) -> Counter[str]:
        """Return the results of the requests that ended after this time."""
        return Counter(one.result for one in self.outcomes if one.ended > since)

    def _check(self) -> None:
        """Raise the error that ended a client."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _ask_on(self, number: int) -> None:
        questions = itertools.product(PROMPTS, self._units)
        for prompt, unit in itertools.islice(itertools.cycle(questions), number, None):
            began = time.monotonic()
            try:
                result, text, request_id = await unit.ask(self._http, prompt, stream=bool(number % 2))
            except httpx.TransportError:
                result = CUT
            else:
                if result == OK:
                    assert text == unit.answers[prompt], f"{unit.slug} was told {text!r}"
                    self.promises.append(Promise(request_id, unit.slug))
            self.outcomes.append(Outcome(number, unit.model, result, began, time.monotonic()))
            await asyncio.sleep(0 if result == OK else _PAUSE_S)


def _streamed(content: str) -> tuple[str, str]:
    """Return the result of a stream and its text."""
    events = [line.removeprefix("data: ") for line in content.splitlines() if line]
    assert events[-1] == "[DONE]", f"a stream without an end: {events[-1:]}"
    chunks = [json.loads(event) for event in events[:-1]]
    if chunks and "error" in chunks[-1]:
        return _code(chunks[-1]), ""
    return OK, "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def _code(answer: Any) -> str:
    error = answer["error"]
    assert error["message"], answer
    return str(error["code"])
