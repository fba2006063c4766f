"""Traces over OTLP/HTTP, enabled and configured by OpenTelemetry's variables.

Callers are not trusted, so each request starts a new trace. An incoming ``traceparent`` becomes a link, as
OpenTelemetry's instrumentations do for public endpoints. Otherwise a caller could choose the trace id or the sampled
flag. It would then decide what is recorded, also under a sampler by trace id, and could write into foreign traces.

Spans hold no prompt and no answer. Names and attributes follow OpenTelemetry's conventions for HTTP servers and
generative AI. The tracer provider is not OpenTelemetry's global one: vLLM would export its spans through that.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes

from app.domain.load_phases import LoadPhases
from app.observability.context import CURRENT, RequestContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_TRACE_CONTEXT = TraceContextTextMapPropagator()


def open_tracing(environ: Mapping[str, str], node: str) -> "TracerProvider | None":
    """Start tracing if OpenTelemetry's variables name an endpoint and do not disable it; else do not import the SDK.

    Spans are exported by a background thread, which drops spans when it cannot keep up. The provider's ``shutdown``
    flushes pending spans, and blocks for seconds if the collector does not answer.

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
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    own = Resource.create({"service.name": "tenora", "service.instance.id": node})
    provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def begin_trace(request: RequestContext, tracer: Tracer, traceparent: str | None) -> None:
    """Start the trace of an incoming request, unless the sampler rejects it."""
    carrier = {"traceparent": traceparent or ""}
    caller = get_current_span(_TRACE_CONTEXT.extract(carrier, Context())).get_span_context()
    links = (Link(caller),) if caller.is_valid else ()
    span = tracer.start_span("request", Context(), kind=SpanKind.SERVER, links=links)
    if span.is_recording():
        request.tracer, request.span = tracer, span


def start_span(
    name: str, attributes: Attributes = None, *, parent: Span | None = None, start_ns: int | None = None
) -> Span:
    """Start a span in the current request's trace. It records nothing if the request is not traced.

    Args:
        parent: parent span; default: the span of the request.
        start_ns: nanoseconds since the epoch; default: now.
    """
    if (request := CURRENT.get()) is None:
        return INVALID_SPAN
    context = set_span_in_context(parent or request.span, Context())
    return request.tracer.start_span(name, context, attributes=attributes, start_time=start_ns)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Record a stage of the current request as a span."""
    span = start_span(name)
    try:
        yield
    except BaseException as error:
        mark_failed(span, type(error).__name__)
        raise
    finally:
        span.end()


def mark_failed(span: Span, error: str) -> None:
    """Set the span's status; ``error`` is a class or a code, never a message."""
    span.set_attribute("error.type", error)
    span.set_status(StatusCode.ERROR)


def record_load(began: float, phases: LoadPhases) -> None:
    """Record a finished adapter load in the current request's trace; ``began`` is its start by ``time.monotonic``."""
    start = time.time_ns() - time.monotonic_ns() + int(began * 1e9)
    whole = start_span("load", start_ns=start)
    # The phases follow each other without a gap: see app.engine.residency.adapter_loader.
    parts = {"fetch": phases.fetch_s, "stage": phases.stage_s, "wait": phases.wait_s, "copy": phases.copy_s}
    for name, seconds in parts.items():
        part = start_span(f"load.{name}", parent=whole, start_ns=start)
        start += int(seconds * 1e9)
        part.end(start)
    whole.end(start)
