"""Traces over OTLP/HTTP, enabled and configured by OpenTelemetry's variables.

Callers are not trusted, so each request starts a new trace. An incoming ``traceparent`` becomes a link, as
OpenTelemetry's instrumentations do for public endpoints. Otherwise a caller could choose the trace id or the sampled
flag. It would then decide what is recorded, also under a sampler by trace id, and could write into foreign traces.

Spans hold no prompt and no answer. Names and attributes follow OpenTelemetry's conventions for HTTP servers and
generative AI.
"""

import time
from types import TracebackType

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.domain.load_phases import LoadPhases
from app.observability.tracing import Attributes

_TRACE_CONTEXT = TraceContextTextMapPropagator()


class Tracing:
    """Starts traces and exports them in a background thread, which drops spans when it cannot keep up."""

    def __init__(self, node: str) -> None:
        own = Resource.create({"service.name": "tenora", "service.instance.id": node})
        self._provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("tenora")

    def begin(self, traceparent: str | None) -> "OtlpTrace | None":
        """Start the trace of an incoming request; None if the sampler rejects it."""
        links = _links(traceparent) if traceparent else ()
        root = self._tracer.start_span("request", Context(), kind=SpanKind.SERVER, links=links)
        return OtlpTrace(self._tracer, root) if root.is_recording() else None

    def close(self) -> None:
        """Flush pending spans. Blocks for seconds if the collector does not answer."""
        self._provider.shutdown()


class OtlpTrace:
    """Implements :class:`app.observability.tracing.Trace`."""

    def __init__(self, tracer: Tracer, root: Span) -> None:
        self._tracer, self._root = tracer, root
        self._in_root = set_span_in_context(root, Context())
        self._epoch_ns = time.time_ns() - time.monotonic_ns()
        self.trace_id = f"{root.get_span_context().trace_id:032x}"

    def stage(self, name: str, attributes: Attributes | None = None) -> "OtlpStage":
        return OtlpStage(self._tracer.start_span(name, self._in_root, attributes=attributes))

    def load(self, began: float, phases: LoadPhases) -> None:
        start = self._epoch_ns + int(began * 1e9)
        whole = self._tracer.start_span("load", self._in_root, start_time=start)
        in_load = set_span_in_context(whole, Context())
        # The phases follow each other without a gap: see app.engine.residency.adapter_loader.
        parts = {"fetch": phases.fetch_s, "stage": phases.stage_s, "wait": phases.wait_s, "copy": phases.copy_s}
        for name, seconds in parts.items():
            part = self._tracer.start_span(f"load.{name}", in_load, start_time=start)
            start += int(seconds * 1e9)
            part.end(start)
        whole.end(start)

    def end(self, name: str, attributes: Attributes, *, error: str | None) -> None:
        self._root.update_name(name)
        _end(self._root, attributes, error)


class OtlpStage:
    """Implements :class:`app.observability.tracing.Stage`."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> "OtlpStage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.end({}, error=kind.__name__ if kind else None)

    def end(self, attributes: Attributes, *, error: str | None = None) -> None:
        if self._span.is_recording():
            _end(self._span, attributes, error)


def _links(traceparent: str) -> tuple[Link, ...]:
    caller = get_current_span(_TRACE_CONTEXT.extract({"traceparent": traceparent}, Context())).get_span_context()
    return (Link(caller),) if caller.is_valid else ()


def _end(span: Span, attributes: Attributes, error: str | None) -> None:
    span.set_attributes(attributes)
    if error:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
    span.end()
