"""Trace collector: OTLP over HTTP, decoded with OpenTelemetry's own protocol classes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

_VALUES = ("string_value", "int_value", "double_value", "bool_value")


@dataclass(frozen=True)
class Span:
    """One span; times in nanoseconds since the epoch, ids in hexadecimal digits, "" for the parent of a root."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    failed: bool
    links: tuple[str, ...]
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """Received data.

    Attributes:
        raw: the bodies as they came.
    """

    url: str = ""
    raw: list[bytes] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def trace(self, request_id: str) -> dict[str, Span]:
        """Return the spans of one request by name; empty until its root span, which ends last, is there."""
        roots = [span for span in self.spans if span.attributes.get("tenora.request_id") == request_id]
        return {span.name: span for span in self.spans if roots and span.trace_id == roots[0].trace_id}

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            about = _attributes(resource.resource.attributes)
            self.spans += [_span(span, about) for scope in resource.scope_spans for span in scope.spans]
        self.raw.append(body)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port of the loopback interface while the block lasts."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            collector.take(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Suppress the log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="otlp-collector")
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == Status.STATUS_CODE_ERROR,
        tuple(link.trace_id.hex() for link in span.links),
        _attributes(span.attributes),
        resource,
    )


def _attributes(found: Any) -> dict[str, Any]:
    return {one.key: next(getattr(one.value, kind) for kind in _VALUES if one.value.HasField(kind)) for one in found}
