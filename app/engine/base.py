"""The port of the engine: one call with plain, picklable data.

Nothing here knows vLLM, so the engine can live in this process or behind a cluster handle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, Self

from adapters.identity import VersionKey


class Endpoint(StrEnum):
    """Which of OpenAI's two request shapes the body has."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine holds and does at one moment.

    Attributes:
        running: requests in the engine that have not ended.
        waiting: requests that wait for a LoRA slot before they may enter.
        resident: adapters in the engine's memory, those being loaded included.
        restarts: how often a dead engine was replaced since the process began.
    """

    running: int
    waiting: int
    resident: int
    restarts: int


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One inference request as the engine sees it.

    Attributes:
        request_id: made by the server, unique.
        endpoint: the shape of ``body``.
        body: an OpenAI request body, already reduced to allow-listed fields, without ``model``.
        model: the public name that answers carry.
        adapter: the version to apply, or None for the base model.
        cache_salt: the tenant's; keeps its prefix-cache entries apart from everyone else's.
    """

    request_id: str
    endpoint: Endpoint
    body: dict[str, Any]
    model: str
    adapter: VersionKey | None
    cache_salt: str


class EventStream(Protocol):
    """An answer's server-sent events, each ``data: ...\\n\\n``, the last ``data: [DONE]\\n\\n``.

    Whoever receives one reads it to its end or closes it; closing aborts the request in the engine.
    """

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> str: ...

    async def aclose(self) -> None: ...


#: A whole answer (OpenAI's response body), or its events.
Answer = dict[str, Any] | EventStream


class Engine(Protocol):
    """What the services need of an engine."""

    @property
    def state(self) -> EngineState: ...

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Ids of the base tokenizer's special tokens (BOS, EOS, ...); empty until the engine has started once."""

    def stats(self) -> EngineStats:
        """Numbers for metrics; zeros while no engine runs."""

    async def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token by itself, in order, as the engine's logprobs show it."""

    async def start(self) -> None:
        """Return when the engine has answered a request, or raise EngineUnavailable."""

    async def stop(self) -> None:
        """End the engine and everything that it started."""

    async def answer(self, request: EngineRequest) -> Answer:
        """Run one request; events if ``body["stream"]`` is true, else the whole answer.

        Whatever can be known before the first token is raised here, not inside the stream. Cancelling
        the call, or closing the events, aborts the request in the engine.

        Raises:
            InvalidRequest: the engine refuses the body (too long, bad schema, ...).
            EngineUnavailable: the engine is starting again.
            AdapterLoadFailed: the version could not be loaded; it must be quarantined.
            adapters.errors.StorageError: the version's bytes could not be had.
        """

    async def unload(self, version_id: int) -> None:
        """Drop a version from the engine once its last request has ended; unknown ids are no error."""

    async def check(self) -> None:
        """Prove that the engine answers.

        Raises:
            EngineUnavailable
        """
