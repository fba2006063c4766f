"""Request traces: exported by OTLP to a collector if configured, otherwise switched off."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import INVALID_SPAN, format_trace_id, get_tracer

from app.domain.load_phases import LoadPhases
from app.observability.context import CURRENT, RequestContext
from app.observability.tracing import begin_trace, open_tracing, record_load, stage, start_span
from tests.support.otlp_collector import Collector, Span, collecting
from tests.support.serving import save_base
from tests.support.site import Site, running_site

PARENT = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # milliseconds
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield collector


def opened() -> TracerProvider:
    provider = open_tracing(os.environ, "node-1")
    assert provider is not None
    return provider


@pytest.fixture
def provider(collector: Collector) -> Iterator[TracerProvider]:
    provider = opened()
    yield provider
    provider.shutdown()


@pytest.fixture
def site(collector: Collector, tmp_path: Path) -> Iterator[Site]:
    with running_site(tmp_path / "home", save_base(tmp_path / "base")) as site:
        yield site


def begun(provider: TracerProvider, traceparent: str | None = None) -> RequestContext:
    """Return the context of a request whose trace has begun, if the sampler wants it."""
    request = RequestContext("f" * 32)
    begin_trace(request, provider.get_tracer("tenora"), traceparent)
    return request


@contextmanager
def current(request: RequestContext) -> Iterator[None]:
    token = CURRENT.set(request)
    try:
        yield
    finally:
        CURRENT.reset(token)


def ended(provider: TracerProvider, collector: Collector, traceparent: str | None = None) -> Span:
    """Begin and end a trace, and return its root span."""
    span = begun(provider, traceparent).span
    span.end()
    provider.shutdown()
    (root,) = collector.spans
    assert root.trace_id == format_trace_id(span.get_span_context().trace_id)
    return root


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "always_on"},
    ],
)
def test_off_unless_an_endpoint_is_named(environ: dict[str, str]) -> None:
    script = (
        "import os, sys\nfrom app.observability.tracing import open_tracing, stage\n"
        "assert open_tracing(os.environ, 'node') is None\n"
        "with stage('x'): pass\n"
        "heavy = ('opentelemetry.sdk', 'opentelemetry.exporter', 'opentelemetry.proto')\n"
        "found = [name for name in sys.modules if name.startswith(heavy)]\n"
        "sys.exit(str(found) if found else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_a_protocol_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is 'grpc'; Tenora supports only http/protobuf[.]$"):
        open_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", name: "grpc"}, "node")


def test_the_endpoint_of_traces_alone_will_do(collector: Collector) -> None:
    provider = open_tracing({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces"}, "node")
    assert provider is not None
    ended(provider, collector)


def test_no_trace_no_span(provider: TracerProvider, collector: Collector) -> None:
    """Neither outside of requests nor in a request that is not traced."""
    assert start_span("x") is INVALID_SPAN
    with stage("x"):
        record_load(time.monotonic(), LoadPhases(0.5, 0.25, 0.125, 0.0625))
    with current(RequestContext("f" * 32)), stage("x"):
        assert start_span("x") is INVALID_SPAN
        record_load(time.monotonic(), LoadPhases(0.5, 0.25, 0.125, 0.0625))
    provider.shutdown()
    assert collector.raw == []


def test_libraries_export_no_spans(provider: TracerProvider) -> None:
    assert not get_tracer("vllm").start_span("x").is_recording()


def test_a_callers_trace_is_linked_and_not_joined(provider: TracerProvider, collector: Collector) -> None:
    root = ended(provider, collector, f"00-{PARENT}-00f067aa0ba902b7-01")
    assert root.links == (PARENT,)
    assert (root.parent_id, root.trace_id == PARENT) == ("", False)


@pytest.mark.parametrize(
    "given", ["", "rubbish", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"ff-{PARENT}-x-01", "0" * 9999]
)
def test_rubbish_is_no_link(provider: TracerProvider, collector: Collector, given: str) -> None:
    assert ended(provider, collector, given).links == ()


@pytest.mark.parametrize("flags", ["00", "01"])
@pytest.mark.parametrize("sampler", ["always_off", "parentbased_always_off", "traceidratio"])
def test_no_caller_makes_the_sampler_want_it(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, sampler: str, flags: str
) -> None:
    """Neither the sampled flag nor a trace id that the ratio sampler accepts has an effect."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.000000000001")
    provider = opened()
    request = begun(provider, f"00-{'0' * 31}1-00f067aa0ba902b7-{flags}")
    assert request.span is INVALID_SPAN
    with current(request), stage("x"):
        assert start_span("x") is INVALID_SPAN
    provider.shutdown()
    assert collector.raw == []


def test_stages_and_a_load(provider: TracerProvider, collector: Collector) -> None:
    request, began = begun(provider), time.monotonic()
    with current(request):
        with stage("resolve"):
            pass
        with pytest.raises(KeyError), stage("admission"):
            raise KeyError("words of a prompt")
        record_load(began, LoadPhases(0.5, 0.25, 0.125, 0.0625))
        engine = start_span("engine", {"gen_ai.request.model": "prices"})
    engine.set_attribute("gen_ai.usage.output_tokens", 3)
    engine.end()
    request.span.update_name("POST /x")
    request.span.set_attribute("tenora.request_id", "f" * 32)
    request.span.end()
    provider.shutdown()
    spans = collector.trace("f" * 32)
    root = spans.pop("POST /x")
    parts = {name: spans.pop(f"load.{name}") for name in ("fetch", "stage", "wait", "copy")}
    assert spans.keys() == {"resolve", "admission", "load", "engine"}
    assert {span.parent_id for span in spans.values()} == {root.span_id}
    assert {span.parent_id for span in parts.values()} == {spans["load"].span_id}
    seconds = {name: round((part.end - part.start) / 1e9, 6) for name, part in parts.items()}
    assert seconds == {"fetch": 0.5, "stage": 0.25, "wait": 0.125, "copy": 0.0625}
    assert parts["fetch"].start == spans["load"].start
    assert parts["copy"].end == spans["load"].end
    assert [name for name, span in spans.items() if span.failed] == ["admission"]
    assert spans["admission"].attributes == {"error.type": "KeyError"}
    assert spans["engine"].attributes == {"gen_ai.request.model": "prices", "gen_ai.usage.output_tokens": 3}
    assert b"words of a prompt" not in b"".join(collector.raw)


def test_who_it_is(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    resource = ended(opened(), collector).resource
    assert resource["service.name"] == "tenora"
    assert resource["service.instance.id"] == "node-1"
    assert resource["deployment.environment.name"] == "test"


def test_an_operators_name_for_it(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "llm")
    assert ended(opened(), collector).resource["service.name"] == "llm"


def test_a_request_over_http(collector: Collector, site: Site) -> None:
    """Without an engine: spans of the stages before it, and the final status."""
    with site.client(site.admin_key) as admin:
        assert admin.post("/admin/tenants", json={"slug": "retail"}).status_code == 201
        key = admin.post("/admin/tenants/retail/keys", json={"name": "x", "scopes": ["inference"]}).json()["key"]
    with site.client(key) as client:
        assert client.get("/health/live").status_code == 200
        absent = client.get("/v1/models/a-secret-name")
        refused = client.post(
            "/v1/completions",
            json={"prompt": "a-secret-prompt", "user": "a-secret-user"},
            headers={"traceparent": f"00-{PARENT}-00f067aa0ba902b7-00", "tracestate": "a-secret=state"},
        )
    assert (absent.status_code, refused.status_code) == (404, 503)
    ids = [answer.headers["x-request-id"] for answer in (absent, refused)]
    # Spans are exported every few seconds; the fixture stops the server, which flushes the rest, only later.
    deadline = time.monotonic() + 60
    while not all(collector.trace(one) for one in ids):
        assert time.monotonic() < deadline, "the spans did not come"
        time.sleep(0.05)
    (first,), second = collector.trace(ids[0]).values(), collector.trace(ids[1])
    assert (first.name, first.failed, first.links) == ("GET /v1/models/{model_id:path}", False, ())
    assert second.keys() == {"POST /v1/completions", "resolve", "limits"}
    root = second["POST /v1/completions"]
    assert root.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 503,
        "tenora.request_id": ids[1],
        "tenora.tenant": "retail",
        "tenora.key_id": key.split("_")[1],
        "error.type": "engine_unavailable",
    }
    assert root.failed
    assert root.links == (PARENT,)
    sent = b"".join(collector.raw)
    assert b"a-secret" not in sent
    assert key.split("_")[2].encode() not in sent
    assert not any("/health" in span.name for span in collector.spans)
