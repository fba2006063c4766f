"""Observability of a whole server: log, traces, and every series used by the dashboard and the alerts."""

import itertools
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from app.demo.train import Demo
from tests.support.fresh_metrics import fresh_metrics
from tests.support.otlp_collector import Collector, Span, collecting
from tests.support.promql import exposed, problems
from tests.support.server import Server, running, until
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "tenora.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
SECRET = f"zq{secrets.token_hex(12)}"


@dataclass(frozen=True)
class Watched:
    """Server that has answered various requests, and the collectors that observe it.

    Attributes:
        answers: by kind of request.
    """

    server: Server
    collector: Collector
    answers: dict[str, httpx.Response]
    metrics: str

    def trace(self, name: str) -> dict[str, Span]:
        """Return the spans of one answer, by name."""
        request_id = self.answers[name].headers["x-request-id"]
        until(lambda: self.collector.trace(request_id), 60)
        return self.collector.trace(request_id)


@pytest.fixture(scope="module")
def watched(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    home = tmp_path_factory.mktemp("watched")
    with collecting() as collector:
        settings = SLOTS | {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces",
            "OTEL_BSP_SCHEDULE_DELAY": "100",  # milliseconds
            "TENORA_LOG__FORMAT": "json",
            "VLLM_LOGGING_LEVEL": "INFO",
        }
        with running(home, trained_demo.base, **settings) as server:
            key = server.tenant("pricing")
            for adapter, folder in {**trained_demo.adapters, "third": trained_demo.adapters["pricing"]}.items():
                assert server.publish("pricing", adapter, folder).status_code == 201
            with server.client(key) as client:
                answers = ask(client, "supply-chain", "third", "pricing")
            with server.client() as client:
                text = fresh_metrics(client)
            yield Watched(server, collector, answers, text)


def ask(client: httpx.Client, *adapters: str) -> dict[str, httpx.Response]:
    """Send a few requests of each kind.

    With more adapters than slots some requests are cold; a repeat of the last one is warm.
    """
    body = {"prompt": f"What is {SECRET}?", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    chat = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4}
    first = [client.post("/v1/completions", json={**body, "model": adapter}) for adapter in adapters * 2]
    hurry = {"x-request-timeout": "0.000000001"}
    late = [client.post("/v1/completions", json={**body, "model": adapter}, headers=hurry) for adapter in adapters]
    answers = {
        "cold": next(answer for answer in first if "x-tenora-load-ms" in answer.headers),
        "late": next(answer for answer in late if answer.status_code == 503),
    }
    assert client.post("/v1/completions", json={**body, "model": adapters[-1]}).status_code == 200
    asked = {
        "warm": ("/v1/completions", {**body, "model": adapters[-1]}),
        "stream": ("/v1/completions", {**body, "model": adapters[-1], "stream": True}),
        "chat": ("/v1/chat/completions", {**chat, "model": "demo"}),
        "responses": ("/v1/responses", {"model": "demo", "input": SECRET, "max_output_tokens": 4}),
        "messages": ("/v1/messages", {**chat, "model": "demo"}),
        "absent": ("/v1/completions", {**body, "model": SECRET}),
    }
    return answers | {name: client.post(path, json=what) for name, (path, what) in asked.items()}


def queries() -> Iterator[tuple[str, str]]:
    """Return every query of the dashboard and the alert rules, with the name of its panel or alert."""
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def test_every_query_finds_what_it_asks_for(watched: Watched) -> None:
    # Prometheus itself adds this series.
    series = exposed(watched.metrics + "# TYPE up gauge\nup 1\n")
    found = {name: wrong for name, query in queries() if (wrong := problems(query, series))}
    assert found == {}
    assert len(list(queries())) > 50


def test_legends_and_summaries_name_labels_that_are_there(watched: Watched) -> None:
    labels = {"job", "instance"}.union(*(found for one in exposed(watched.metrics).values() for found in one.labels))
    text = "".join(
        path.read_text() for path in (DEPLOY / "grafana" / "tenora.json", DEPLOY / "prometheus" / "alerts.yml")
    )
    named = set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text))
    assert {"instance", "phase", "part"} <= named <= labels


def test_made_up_names_add_no_series(watched: Watched) -> None:
    with watched.server.client(watched.server.tenant("pricing")) as client:

        def make_up(number: int) -> None:
            name = f"made-up-{number}"
            assert client.post("/v1/completions", json={"prompt": "x", "model": name, "user": name}).status_code == 404
            assert client.get(f"/v1/adapters/{name}", headers={"traceparent": name}).status_code == 404
            assert client.get(f"/{name}").status_code == 404
            assert client.post("/generate", json={"inputs": "x", "adapter_id": name}).status_code == 400

        def shown() -> set[tuple[str, frozenset[tuple[str, str]]]]:
            series = exposed(fresh_metrics(client))
            return {(name, frozenset(labels.items())) for name, one in series.items() for labels in one.labels}

        make_up(0)
        before = shown()
        for number in range(1, 100):
            make_up(number)
        after = shown()
    assert after == before


def test_a_request_is_traced_through_all_its_stages(watched: Watched) -> None:
    chats = ("chat", "responses", "messages")
    assert [watched.answers[name].status_code for name in ("warm", "stream", *chats)] == [200] * 5
    for name in ("warm", "stream"):
        spans = watched.trace(name)
        root = spans["POST /v1/completions"]
        assert spans.keys() == {"POST /v1/completions", "resolve", "limits", "admission", "engine"}
        ordered = [spans[stage] for stage in ("resolve", "limits", "admission", "engine")]
        assert all(before.end <= after.start for before, after in itertools.pairwise(ordered))
        assert root.start <= ordered[0].start
        assert ordered[-1].end <= root.end
        told = spans["engine"].attributes
        assert 0 < told.pop("gen_ai.response.time_to_first_chunk") * 1e9 <= ordered[-1].end - ordered[-1].start
        assert told.pop("gen_ai.usage.input_tokens") > 5
        assert told.pop("tenora.version_id") > 0
        told.pop("gen_ai.usage.cache_read.input_tokens")
        assert told == {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "tenora",
            "gen_ai.request.model": "pricing",
            "gen_ai.request.stream": name == "stream",
            "gen_ai.usage.output_tokens": 4,
        }
    for name in chats:
        assert watched.trace(name)["engine"].attributes["gen_ai.operation.name"] == "chat"


def test_a_load_is_traced_by_its_phases(watched: Watched) -> None:
    spans, header = watched.trace("cold"), watched.answers["cold"].headers["server-timing"]
    whole, parts = spans["load"], [spans[f"load.{phase}"] for phase in ("fetch", "stage", "wait", "copy")]
    assert {part.parent_id for part in parts} == {whole.span_id}
    assert all(before.end == after.start for before, after in itertools.pairwise(parts))
    assert (parts[0].start, parts[-1].end) == (whole.start, whole.end)
    durations = ", ".join(
        f"{part.name.removeprefix('load.')};dur={(part.end - part.start) / 1e6:.1f}" for part in parts
    )
    assert durations == header
    assert spans["engine"].attributes["gen_ai.usage.output_tokens"] == 4


def test_what_fails_says_where(watched: Watched) -> None:
    assert [watched.answers[name].status_code for name in ("absent", "late")] == [404, 503]
    absent, late = watched.trace("absent"), watched.trace("late")
    assert absent.keys() == {"POST /v1/completions", "resolve"}
    assert absent["resolve"].attributes == {"error.type": "NotFound"}
    assert late["POST /v1/completions"].attributes["error.type"] == "busy"
    assert late["POST /v1/completions"].failed
    assert "engine" not in late


def test_the_engine_s_processes_send_nothing_by_themselves(watched: Watched) -> None:
    assert {span.resource["service.name"] for span in watched.collector.spans} == {"tenora"}


def test_every_line_of_every_process_is_json(watched: Watched) -> None:
    """This includes vLLM's processes. Output that bypasses the loggers does not begin with a brace."""
    text = (watched.server.home / "server.log").read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert {line["logger"].split(".")[0] for line in lines} >= {"app", "uvicorn", "vllm"}
    assert any(line["logger"].startswith("vllm.v1.engine.core") for line in lines)
    other = [line for line in text.splitlines() if not line.startswith("{") and re.search("INFO|WARNING|ERROR", line)]
    assert other == []


def test_each_answer_has_its_line(watched: Watched) -> None:
    text = (watched.server.home / "server.log").read_text()
    access = [json.loads(line) for line in text.splitlines() if '"app.access"' in line]
    for name, answer in watched.answers.items():
        (line,) = [line for line in access if line["request_id"] == answer.headers["x-request-id"]]
        assert (line["tenant"], line["status"]) == ("pricing", answer.status_code), name
        assert line["trace_id"] == next(iter(watched.trace(name).values())).trace_id
    # There is no second access log either, which uvicorn would write with vLLM's log configuration.
    assert '"uvicorn.access"' not in text
    assert SECRET not in text
    assert SECRET.encode() not in b"".join(watched.collector.raw)
