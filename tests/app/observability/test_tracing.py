"""Request traces: exported by OTLP to a collector if configured, otherwise switched off."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.domain.load_phases import LoadPhases
from app.observability.context import CURRENT, RequestContext
from app.observability.otlp import Tracing
from app.observability.tracing import open_tracing, recorded, stage
from tests.app.api.conftest import Site, running_site
from tests.app.serving import save_base
from tests.otlp_collector import Collector, Span, collecting

PARENT = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # milliseconds
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield collector


@pytest.fixture
def tracing(collector: Collector) -> Iterator[Tracing]:
    tracing = Tracing("node-1")
    yield tracing
    tracing.close()


@pytest.fixture
def site(collector: Collector, tmp_path: Path) -> Iterator[Site]:
    with running_site(tmp_path / "home", save_base(tmp_path / "base")) as site:
        yield site


def ended(tracing: Tracing, collector: Collector, traceparent: str | None = None) -> Span:
    """Begin and end a trace, and return its root span."""
    trace = tracing.begin(traceparent)
    assert trace is not None
    trace.end("GET /x", {}, error=None)
    tracing.close()
    (root,) = collector.spans
    assert root.trace_id == trace.trace_id
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
        "found = [name for name in sys.modules if name.startswith(('opentelemetry', 'app.observability.otlp'))]\n"
        "sys.exit(str(found) if found else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_a_protocol_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is 'grpc'; Tenora supports only http/protobuf[.]$"):
        open_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", name: "grpc"}, "node")


def test_the_endpoint_of_traces_alone_will_do(collector: Collector) -> None:
    tracing = open_tracing({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces"}, "node")
    assert tracing is not None
    ended(tracing, collector)


def test_no_request_no_stage() -> None:
    with stage("x") as nothing:
        assert nothing is None
    assert recorded() is None


def test_a_callers_trace_is_linked_and_not_joined(tracing: Tracing, collector: Collector) -> None:
    root = ended(tracing, collector, f"00-{PARENT}-00f067aa0ba902b7-01")
    assert root.links == (PARENT,)
    assert (root.parent_id, root.trace_id == PARENT) == ("", False)


@pytest.mark.parametrize(
    "given", ["", "rubbish", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"ff-{PARENT}-x-01", "0" * 9999]
)
def test_rubbish_is_no_link(tracing: Tracing, collector: Collector, given: str) -> None:
    assert ended(tracing, collector, given).links == ()


@pytest.mark.parametrize("flags", ["00", "01"])
@pytest.mark.parametrize("sampler", ["always_off", "parentbased_always_off", "traceidratio"])
def test_no_caller_makes_the_sampler_want_it(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, sampler: str, flags: str
) -> None:
    """Neither the sampled flag nor a trace id that the ratio sampler accepts has an effect."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.000000000001")
    tracing = Tracing("node")
    assert tracing.begin(f"00-{'0' * 31}1-00f067aa0ba902b7-{flags}") is None
    tracing.close()
    assert collector.raw == []


def test_stages_and_a_load(tracing: Tracing, collector: Collector) -> None:
    trace = tracing.begin(None)
    assert trace is not None
    token, began = CURRENT.set(RequestContext("f" * 32, trace=trace)), time.monotonic()
    try:
        with stage("resolve"):
            pass
        with pytest.raises(KeyError), stage("admission"):
            raise KeyError("words of a prompt")
    finally:
        CURRENT.reset(token)
    trace.load(began, LoadPhases(0.5, 0.25, 0.125, 0.0625))
    engine = trace.stage("engine", {"gen_ai.request.model": "prices"})
    engine.end({"gen_ai.usage.output_tokens": 3})
    engine.end({"gen_ai.usage.output_tokens": 4})
    trace.end("POST /x", {"tenora.request_id": "f" * 32}, error=None)
    tracing.close()
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
    resource = ended(Tracing("node-1"), collector).resource
    assert resource["service.name"] == "tenora"
    assert resource["service.instance.id"] == "node-1"
    assert resource["deployment.environment.name"] == "test"


def test_an_operators_name_for_it(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "llm")
    assert ended(Tracing("node-1"), collector).resource["service.name"] == "llm"


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
