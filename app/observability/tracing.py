"""Tracing facade: spans around the stages of a request, if an OTLP endpoint is configured.

This module does not import OpenTelemetry. Without a trace, a stage costs one look-up of a context variable. The
implementation is :mod:`app.observability.otlp`.
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
    """Span of a stage: a context manager, or an object that is ended elsewhere."""

    def end(self, attributes: Attributes, *, error: str | None = None) -> None:
        """End the span; a second call does nothing. ``error`` is a class or a code, never a message."""


class Trace(Protocol):
    """Trace of one request.

    Attributes:
        trace_id: 32 hexadecimal digits.
    """

    trace_id: str

    def stage(self, name: str, attributes: Attributes | None = None) -> Stage:
        """Start a span that begins now."""

    def load(self, began: float, phases: LoadPhases) -> None:
        """Record a finished adapter load; ``began`` is its start by ``time.monotonic``."""

    def end(self, name: str, attributes: Attributes, *, error: str | None) -> None:
        """End the request's span and set its name: the route is only known now."""


_NOTHING: AbstractContextManager[None] = nullcontext()


def stage(name: str) -> AbstractContextManager[object]:
    """Return a context manager that records a stage of the current request, if the request is traced."""
    request = CURRENT.get()
    return _NOTHING if request is None or request.trace is None else request.trace.stage(name)


def recorded() -> Trace | None:
    """Return the trace of the current request, or None if it is not traced."""
    request = CURRENT.get()
    return None if request is None else request.trace


def open_tracing(environ: Mapping[str, str], node: str) -> "Tracing | None":
    """Start tracing if OpenTelemetry's variables name an endpoint and do not disable it; else import nothing.

    Args:
        node: name of this server, the service instance id.

    Raises:
        ValueError: a variable selects another protocol than ``http/protobuf``.
    """
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if off or not any(environ.get(name) for name in _ENDPOINTS):
        return None
    for name in _PROTOCOLS:
        if (protocol := environ.get(name, _PROTOCOL)) != _PROTOCOL:
            raise ValueError(f"{name} is {protocol!r}; Tenora supports only {_PROTOCOL}.")
    from app.observability.otlp import Tracing

    return Tracing(node)
