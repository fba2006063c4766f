"""Where a request's seconds went: spans around its stages, if somebody collects them.

Nothing here imports OpenTelemetry, and where no request is recorded a stage costs one look at a context variable.
:mod:`app.observability.otlp` has the other side.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from app.domain.load_phases import LoadPhases
from app.observability.context import CURRENT

if TYPE_CHECKING:
    from app.observability.otlp import Tracing

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"

Attributes = Mapping[str, str | int | float | bool | tuple[str, ...]]


class Stage(AbstractContextManager["Stage", None], Protocol):
    """A part of a recorded request: a block, or what begins here and ends elsewhere."""

    def end(self, attributes: Attributes, *, error: str | None = None) -> None:
        """It is over; a second call does nothing. ``error`` is a class or a code, never words."""


class Trace(Protocol):
    """A request that is recorded.

    Attributes:
        trace_id: 32 hexadecimal digits.
    """

    trace_id: str

    def stage(self, name: str, attributes: Attributes | None = None) -> Stage:
        """A part that begins now."""

    def load(self, began: float, phases: LoadPhases) -> None:
        """What its adapter took to load, which began then (``time.monotonic``) and is over."""

    def end(self, name: str, attributes: Attributes, *, error: str | None) -> None:
        """The request is over; only now its route, and so its name, is known."""


_NOTHING: AbstractContextManager[None] = nullcontext()


def stage(name: str) -> AbstractContextManager[object]:
    """A block that is a part of the request that is served here, if that is recorded."""
    request = CURRENT.get()
    return _NOTHING if request is None or request.trace is None else request.trace.stage(name)


def recorded() -> Trace | None:
    """The request that is served here, if it is recorded."""
    request = CURRENT.get()
    return None if request is None else request.trace


def open_tracing(environ: Mapping[str, str], node: str) -> "Tracing | None":
    """Traces, if OpenTelemetry's variables name an endpoint and do not turn them off; else nothing is even imported.

    Args:
        node: the name of this server among others.

    Raises:
        ValueError: a variable asks for another protocol.
    """
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if off or not any(environ.get(name) for name in _ENDPOINTS):
        return None
    for name in _PROTOCOLS:
        if (found := environ.get(name, _PROTOCOL)) != _PROTOCOL:
            raise ValueError(f"{name}: found {found!r}, allowed {_PROTOCOL}")
    from app.observability.otlp import Tracing

    return Tracing(node)
