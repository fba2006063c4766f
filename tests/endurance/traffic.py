"""Mixed traffic: clients that read whole answers or streams, disconnect, or send invalid requests.

In a closed loop each client sends its next request after an answer. In an open loop requests arrive independently of
answers.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx

#: Seconds between two tries of a client whose server is gone.
_PAUSE_S = 0.2
#: Seconds between two tries of a client whose server is busy or restarts its engine.
_RESTART_S = 2
_TIMEOUT_S = 120
_LONGEST = 24
#: Weights of the client behaviours without failures, and of all behaviours.
SOUND: Mapping[str, int] = {"whole": 30, "stream": 30, "chat": 10}
EVERY: Mapping[str, int] = {**SOUND, "leave": 15, "cancel": 10, "amiss": 5}
#: Invalid requests, each with a different fault.
_AMISS: tuple[dict[str, Any], ...] = (
    {"model": "no-such-adapter", "prompt": [1, 2]},
    {"prompt": [1, 2], "max_tokens": -1},
    {"prompt": [1] * 10_000},
    {"prompt": [1, 2], "best_of": 4},
)


@dataclass
class Seen:
    """Observations of the clients.

    Attributes:
        told: request id -> prompt and output tokens, as reported by each complete answer.
        outcomes: outcome of a request -> count.
        sent: requests that a server accepted, whatever their outcome.
    """

    told: dict[str, tuple[int, int]] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    sent: int = 0


class Traffic:
    """Many concurrent clients, until enough requests were sent or they are stopped.

    Attributes:
        url, key: server address and API key; both may change during the run.
    """

    def __init__(
        self,
        url: str,
        key: str,
        models: Sequence[str],
        *,
        clients: int,
        requests: int,
        seed: int,
        manners: Mapping[str, int] = EVERY,
    ) -> None:
        self.url, self.key, self.seen = url, key, Seen()
        self._models, self._requests, self._manners = tuple(models), requests, manners
        self._chances = [random.Random(f"{seed}-{number}") for number in range(clients)]
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def run(self) -> None:
        """Run the closed loop."""
        async with self._client() as client:
            await asyncio.gather(*(self._ask_on(client, chance) for chance in self._chances))

    async def arrive(self, rate: float) -> None:
        """Run the open loop: ``rate`` requests per second with exponential gaps.

        It can be run again after a stop.
        """
        self._stopped = False
        chance = self._chances[0]
        async with self._client() as client, asyncio.TaskGroup() as asked:
            while self._goes_on:
                asked.create_task(self._ask_once(client, chance))
                await asyncio.sleep(chance.expovariate(rate))

    @property
    def _goes_on(self) -> bool:
        return not self._stopped and self.seen.sent < self._requests

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=len(self._chances))
        return httpx.AsyncClient(timeout=_TIMEOUT_S, limits=limits, trust_env=False)

    async def _ask_on(self, client: httpx.AsyncClient, chance: random.Random) -> None:
        while self._goes_on:
            outcome = await self._ask_once(client, chance)
            if outcome == "503":
                await asyncio.sleep(_RESTART_S)
            elif outcome in {"429", "cut off", "no server"}:
                await asyncio.sleep(_PAUSE_S)

    async def _ask_once(self, client: httpx.AsyncClient, chance: random.Random) -> str:
        self.seen.sent += 1
        manner = chance.choices(list(self._manners), list(self._manners.values()))[0]
        try:
            outcome = await self._ask(client, manner, chance)
        except httpx.ConnectError:
            # The request did not reach a server.
            outcome = "no server"
            self.seen.sent -= 1
        except httpx.TransportError:
            outcome = "cut off"
        self.seen.outcomes[outcome] += 1
        return outcome

    async def _ask(self, client: httpx.AsyncClient, manner: str, chance: random.Random) -> str:
        if manner == "amiss":
            answer = await client.post(f"{self.url}/v1/completions", json=chance.choice(_AMISS), headers=self._headers)
            return str(answer.status_code)
        body = self._body(chance)
        if manner == "chat":
            content = " ".join(map(str, body.pop("prompt")))
            return await self._whole(
                client, "chat/completions", body | {"messages": [{"role": "user", "content": content}]}
            )
        if manner == "whole":
            return await self._whole(client, "completions", body)
        if manner == "cancel":
            try:
                async with asyncio.timeout(chance.uniform(0, 0.3)):
                    return await self._whole(client, "completions", body)
            except TimeoutError:
                return "cancelled"
        leave_after = chance.randrange(6) if manner == "leave" else None
        return await self._stream(client, body, leave_after)

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def _body(self, chance: random.Random) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": chance.choice(self._models),
            "prompt": [chance.randrange(10, 200) for _ in range(chance.randint(1, 40))],
            "max_tokens": chance.randint(1, _LONGEST),
            "temperature": 1,
        }
        return body | chance.choice(({}, {}, {"n": 2}, {"stop": ["a", "e"]}, {"ignore_eos": True}))

    async def _whole(self, client: httpx.AsyncClient, route: str, body: dict[str, Any]) -> str:
        answer = await client.post(f"{self.url}/v1/{route}", json=body, headers=self._headers)
        if answer.status_code == httpx.codes.OK:
            self._note(answer, answer.json()["usage"])
        return str(answer.status_code)

    async def _stream(self, client: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None) -> str:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        usage: dict[str, Any] | None = None
        failed = False
        url = f"{self.url}/v1/completions"
        async with client.stream("POST", url, json=body, headers=self._headers) as answer:
            if answer.status_code != httpx.codes.OK:
                return str(answer.status_code)
            # Close the events before the answer: a reader that is collected later would meet a closed connection.
            async with aclosing(_events(answer)) as events:
                number = 0
                async for event in events:
                    if number == leave_after:
                        return "left"
                    number += 1
                    if event == "[DONE]":
                        break
                    content = json.loads(event)
                    usage, failed = content.get("usage") or usage, failed or "error" in content
                else:
                    return "cut off"
        if failed or usage is None:
            return "error event"
        self._note(answer, usage)
        return "200"

    def _note(self, answer: httpx.Response, usage: dict[str, Any]) -> None:
        self.seen.told[answer.headers["x-request-id"]] = (usage["prompt_tokens"], usage["completion_tokens"])


async def _events(answer: httpx.Response) -> AsyncGenerator[str, None]:
    """Yield the data of each event.

    httpx also splits lines at characters that may occur inside JSON text, such as U+0085.
    """
    rest = ""
    async for text in answer.aiter_text():
        *lines, rest = (rest + text).split("\n")
        for line in filter(None, lines):
            yield line.removeprefix("data: ")
