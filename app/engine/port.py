"""The port of the engine: one call with plain, picklable data.

Nothing here knows vLLM, so the engine can live in this process or behind a cluster handle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol, Self

from adapters.identity import VersionKey
from app.domain.load_phases import LoadPhases
from app.engine.status import EngineOverview, EngineState


class Endpoint(StrEnum):
    """Which of OpenAI's two request shapes the body has."""

    COMPLETIONS = "completions"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine holds and does at one moment.

    Attributes:
        running: requests in the engine that have not ended.
        waiting: requests that wait for a LoRA slot before they may enter.
        resident: adapters in the engine's memory, those being loaded included.
        restarts: how often a dead engine was replaced since the process began.
        hangs: how often it was killed because it no longer answered.
    """

    running: int
    waiting: int
    resident: int
    restarts: int
    hangs: int


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
        prompt: of a chat, the prompt's text where it is rendered already; None for the base's own chat template.
        tenant: the caller's slug, whose share of the engine the request uses; "" for the server's own.
        weight: the tenant's share against that of others.
        deadline_s: seconds from now until its first token must be there; None: whenever it comes.
        rendered: as of :class:`MostTokens`; None: its tokens were not counted.
    """

    request_id: str
    endpoint: Endpoint
    body: dict[str, Any]
    model: str
    adapter: VersionKey | None
    cache_salt: str
    prompt: str | None = None
    tenant: str = ""
    weight: float = 1.0
    deadline_s: float | None = None
    rendered: Any = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """What one request used of the engine.

    Attributes:
        prompt_tokens: of all its prompts, each once; ``cached_tokens`` of them the engine still had.
        output_tokens: of all its sequences, as many as the answer has, or had when it was given up.
        ttft_s: seconds from the call of :meth:`Engine.answer` to the first token.
        slot_s: its part of the seconds for which its adapter had a slot; see :mod:`app.engine.residency.slot_time`.
        load_s: seconds that it waited for its adapter; None if that had a slot already, or it named none.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float
    slot_s: float = 0.0
    load_s: float | None = None


@dataclass(frozen=True, slots=True)
class MostTokens:
    """The most tokens that one request can use: of its prompts, each once, and of all its answers together.

    Attributes:
        rendered: what the engine made of the prompts to count them, if it had to. It is the engine's own affair; a
            request that brings it along is not rendered again.
    """

    prompt: int
    output: int
    rendered: Any = None


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """What a few short prompts showed of a version.

    Attributes:
        finite: every logit and every logprob was a number.
        has_effect: the answers differ from the base's; see :mod:`app.engine.lifecycle.smoke_check` for what counts.
    """

    finite: bool
    has_effect: bool


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something that happened to a version in this process's engine.

    Attributes:
        kind: ``evict``: it made room for another; ``unload``: it was told to go.
        seconds: how long it took, for ``load`` and ``load_failed``.
        phases: what those seconds went to, for ``load``.
    """

    kind: Literal["load", "evict", "unload", "load_failed"]
    version_id: int
    seconds: float | None = None
    phases: LoadPhases | None = None


#: Called in the event loop; must neither block nor raise.
Listener = Callable[[EngineEvent], None]


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

    def write_statistics(self) -> None:
        """Bring vLLM's own metrics up to date, for whoever reads them next. It takes a millisecond."""

    def overview(self) -> EngineOverview:
        """What an operator sees; the tiers below the engine also while no engine runs."""

    def take_load(self, request_id: str) -> LoadPhases | None:
        """What a request waited for, once its first token is there; None if its adapter had a slot already.

        It is told once.
        """

    async def most_tokens(self, request: EngineRequest) -> MostTokens:
        """The most tokens that a request can use.

        Raises:
            InvalidRequest: as :meth:`answer`.
            EngineUnavailable
        """

    def take_usage(self, request_id: str) -> TokenUsage | None:
        """What a request used whose answer has ended, failed or was given up; None if it never had a token.

        It is told once. Of the last thousands of requests that nobody asked about it is remembered.
        """

    def prefetch(self, key: VersionKey) -> None:
        """Bring a version towards the engine if there is room to spare; returns at once and never fails."""

    async def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token by itself, in order, as the engine's logprobs show it."""

    async def start(self) -> None:
        """Return when the engine has answered a request, or raise EngineUnavailable."""

    def leave(self) -> None:
        """The server is about to end: an engine that answers goes on, one that dies from now on is not replaced."""

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

    async def smoke(self, key: VersionKey) -> SmokeResult:
        """Load a version and compare its answers to a few short prompts with the base's.

        It waits for a slot as any request does, and the version stays loaded until its place is needed.

        Raises:
            AdapterLoadFailed: and nothing of the version is left in the engine.
            EngineUnavailable
            adapters.errors.StorageError: the version's bytes could not be had.
        """

    def was_finite(self, request_id: str) -> bool:
        """False: the engine found NaN among a request's logits. To be asked once its answer has ended.

        Remembered for the last thousands of such requests; True for an id that is not known.
        """

    async def preload(self, key: VersionKey) -> None:
        """Load a version, now and in every new life of the engine; it stays until its place is needed.

        Raises: as :meth:`smoke`.
        """

    async def pin(self, key: VersionKey) -> None:
        """Give a version a slot of its own, in this and every new life of the engine, until :meth:`unpin`.

        Its requests then never wait for a slot, and all others share one slot less.

        Raises:
            Conflict: no slot would be left for the others.
            AdapterLoadFailed, EngineUnavailable
            adapters.errors.StorageError: the version's bytes could not be had.
        """

    async def unpin(self, version_id: int) -> None:
        """Let a pinned version share the slots again; it stays loaded until its place is needed."""

    @property
    def pinned(self) -> frozenset[int]:
        """The versions that are pinned, or will be as soon as the engine is back."""

    async def holds(self, version_id: int) -> bool:
        """Whether anything of a version is in the engine, as the engine itself says.

        Raises:
            EngineUnavailable: nobody is there to say.
        """

    def subscribe(self, listener: Listener) -> None:
        """Tell the listener of every event from now on, as long as the process lives."""

    def watch_waits(self, listener: Callable[[float], None]) -> None:
        """Tell the listener for how many seconds each request waited before it entered; see :meth:`subscribe`."""

    async def unload(self, version_id: int) -> None:
        """Drop a version, pinned or not, once its last request has ended; unknown ids are no error."""

    async def check(self) -> None:
        """Prove that the engine answers.

        Raises:
            EngineUnavailable
        """
