"""Engine port: three protocols between the services and an inference engine.

- :class:`Inference` answers requests.
- :class:`Residency` loads, pins and unloads versions.
- :class:`Status` reports the engine's state and its events.

All data is plain and picklable, and nothing here depends on vLLM. The engine can run in this process or behind a
cluster handle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

from adapters.identity import VersionKey
from app.domain.load_phases import LoadPhases
from app.engine.status import EngineStatus, StatusReport


class Endpoint(StrEnum):
    """OpenAI request schema of a body."""

    COMPLETIONS = "completions"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """Inference request for the engine.

    Attributes:
        request_id: unique id, made by the server.
        endpoint: schema of ``body``.
        body: OpenAI request body, reduced to allow-listed fields, without ``model``.
        model: public model name for the answer.
        adapter: version to apply, or None for the base model.
        cache_salt: the tenant's salt. It separates the tenant's prefix-cache entries from those of others.
        prompt: rendered text of a chat prompt; None for completions.
        tenant: slug of the tenant whose share the request uses; "" for the server's own requests.
        weight: the tenant's weight in fair scheduling.
        deadline_s: seconds from now by which the first token must arrive; None: no deadline.
        token_ids: tokens of each prompt, special tokens included; None: the engine tokenizes the text.
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
    token_ids: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Usage of one request.

    Attributes:
        prompt_tokens: tokens of all prompts, each prompt counted once.
        cached_tokens: prompt tokens that the prefix cache already held.
        output_tokens: tokens of all sequences, up to the answer's end or abort.
        ttft_s: seconds from the call of :meth:`EngineCall.answer` to the first token; None if it is unknown.
        slot_s: share of the seconds for which its adapter had a slot; see :mod:`app.engine.residency.slot_time`.
        load_s: seconds of waiting for its adapter; None if the adapter had a slot already, or the request named none.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float | None
    slot_s: float = 0.0
    load_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a call that no answer carries.

    Attributes:
        usage: its tokens; None until it has ended, and if it produced no token.
        load: phases of the load that it waited for; None if its adapter had a slot already. Known before the answer.
        finite: False once the engine has found NaN in its logits.
    """

    usage: TokenUsage | None = None
    load: LoadPhases | None = None
    finite: bool = True


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """Result of a version's smoke check.

    Attributes:
        finite: whether every logit and every logprob is a number.
        has_effect: whether the answers differ from the base's; :mod:`app.engine.lifecycle.smoke_check` has the
            criterion.
    """

    finite: bool
    has_effect: bool


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Change of a version's residency in this process's engine.

    Attributes:
        kind: ``evict``: it made room for another version; ``unload``: it was removed on request.
        seconds: duration of a ``load`` or ``load_failed``.
        phases: breakdown of these seconds, for ``load``.
    """

    kind: Literal["load", "evict", "unload", "load_failed"]
    version_id: int
    seconds: float | None = None
    phases: LoadPhases | None = None


#: Called in the event loop; must neither block nor raise.
Listener = Callable[[EngineEvent], None]


class AnswerEvent(NamedTuple):
    """Server-sent event of an answer.

    Attributes:
        text: ``data: ...\\n\\n``; the last event of an answer is ``data: [DONE]\\n\\n``.
        tokens: output tokens that the engine has generated for the request since the previous event.
    """

    text: str
    tokens: int


E_co = TypeVar("E_co", covariant=True)


class EventStream(Protocol[E_co]):
    """Stream of server-sent events. The consumer reads it to its end or closes it."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> E_co: ...

    async def aclose(self) -> None: ...


#: Whole answer (OpenAI's response body), or its event stream. Closing the stream aborts the request in the engine.
Answer = dict[str, Any] | EventStream[AnswerEvent]


class EngineCall(Protocol):
    """One request to the engine."""

    @property
    def request(self) -> EngineRequest: ...

    @property
    def outcome(self) -> Outcome:
        """Outcome so far; final once the answer has ended, failed or was aborted."""

    async def answer(self) -> Answer:
        """Run the request. Return an event stream if its body says ``stream``, else the whole answer. Call it once.

        Errors known before the first token are raised here, not inside the stream. Cancelling the call, or closing
        the stream, aborts the request in the engine. Its outcome includes the tokens that were generated until then.

        Raises:
            EngineUnavailable: no engine runs.
            InvalidRequest: the engine refuses the body (too long, bad schema, ...).
            QueueFull, Busy: the admission queue is full, or the deadline cannot be met.
            AdapterLoadFailed: the version could not be loaded. The caller must quarantine it.
            adapters.errors.StorageError: the version's bytes are not available.
        """


class Inference(Protocol):
    """Answers to requests.

    Raises:
        EngineUnavailable: by every coroutine, while no engine runs.
    """

    def begin(self, request: EngineRequest) -> EngineCall:
        """Create the call of a request, without any I/O. :meth:`EngineCall.answer` runs it."""


class Residency(Protocol):
    """Versions in the engine.

    Raises:
        EngineUnavailable: by every coroutine except ``unpin`` and ``unload``, while no engine runs.
    """

    async def smoke(self, key: VersionKey) -> SmokeResult:
        """Load a version and compare its answers to a few short prompts with the base's.

        The check waits for a slot like any request. The version stays loaded until its slot is needed.

        Raises:
            AdapterLoadFailed: nothing of the version is left in the engine.
            adapters.errors.StorageError: the version's bytes are not available.
        """

    def prefetch(self, key: VersionKey) -> None:
        """Start to bring a version towards the engine if there is spare room. Return at once and never fail."""

    async def preload(self, key: VersionKey) -> None:
        """Load a version now and after every restart of the engine. It stays until its slot is needed.

        Raises: as :meth:`smoke`.
        """

    async def pin(self, key: VersionKey) -> None:
        """Reserve a slot for a version, now and after every restart of the engine, until :meth:`unpin`.

        Requests of a pinned version never wait for a slot. All other versions share one slot less.

        Raises:
            Conflict: no slot would be left for other versions.
            AdapterLoadFailed
            adapters.errors.StorageError: the version's bytes are not available.
        """

    async def unpin(self, version_id: int) -> None:
        """Release the pin of a version. It stays loaded until its slot is needed."""

    async def unload(self, version_id: int) -> None:
        """Drop a version, pinned or not, once its last request has ended. Unknown ids are ignored."""

    async def holds(self, version_id: int) -> bool:
        """Return whether anything of a version is in the engine, according to the engine itself."""


class Status(Protocol):
    """State of the engine, and its events."""

    def status(self) -> EngineStatus:
        """Return a snapshot. It covers the tiers below the engine even while no engine runs."""

    def report(self) -> StatusReport:
        """Return a snapshot with all versions and tenants, for operators. :meth:`status` is cheaper."""

    def subscribe(self, listener: Listener) -> None:
        """Call the listener for every event from now on, for the life of the process."""

    def watch_waits(self, listener: Callable[[float], None]) -> None:
        """Call the listener with the seconds that each request waited before it entered; see :meth:`subscribe`."""

    async def check(self) -> None:
        """Check that the engine answers.

        Raises:
            EngineUnavailable
        """


class Engine(Inference, Residency, Status, Protocol):
    """Inference engine with its life cycle."""

    async def start(self) -> None:
        """Start the engine and return once it has answered a request.

        Raises:
            EngineUnavailable: the engine died during its start.
            Exception: any other error of the start.
        """

    def leave(self) -> None:
        """Start no engine from now on, as the server is about to end. A running engine continues to answer."""

    async def stop(self) -> None:
        """Stop the engine and all processes that it started."""
