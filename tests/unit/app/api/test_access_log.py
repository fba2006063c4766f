"""Access log: one line for each request, without any text from the client."""

import io
import json
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from app.observability.logs import ACCESS, JsonFormatter
from tests.support.site import Site, Unit

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Callable that parses every application log line written since the fixture started."""
    written, logger = io.StringIO(), logging.getLogger("app")
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


def access(lines: Lines, answer: httpx.Response) -> dict[str, Any]:
    """Return the one access log line of this response's request."""
    request_id = answer.headers["x-request-id"]
    (line,) = [line for line in lines() if line["logger"] == ACCESS and line["request_id"] == request_id]
    return line


def test_a_request_of_a_tenant(site: Site, unit: Unit, lines: Lines) -> None:
    with site.client(unit.key) as client:
        answer = client.get("/v1/models/nothing-of-that-name")
    line = access(lines, answer)
    assert line.pop("duration_s") > 0
    assert line.pop("time")
    assert line == {
        "level": "INFO",
        "logger": "app.access",
        "message": "GET /v1/models/{model_id:path} 404",
        "request_id": answer.headers["x-request-id"],
        "tenant": unit.slug,
        "key_id": unit.key.split("_")[1],
        "method": "GET",
        "route": "/v1/models/{model_id:path}",
        "status": 404,
        "code": "not_found",
    }


def test_every_line_of_a_request_has_its_id(site: Site, unit: Unit, lines: Lines) -> None:
    """The example is an engine error, which is logged where it is answered."""
    with site.client(unit.key) as client:
        answer = client.post("/v1/completions", json={"prompt": "hello", "model": ""})
    assert answer.status_code == 503
    request_id = answer.headers["x-request-id"]
    told = [line for line in lines() if line.get("request_id") == request_id]
    assert [line["logger"] for line in told] == ["app.api.errors", ACCESS]
    assert {line["tenant"] for line in told} == {unit.slug}
    assert told[1]["code"] == "engine_unavailable"


def test_who_has_no_key_is_nobody(site: Site, lines: Lines) -> None:
    with site.client("tnr_wrong") as client:
        line = access(lines, client.get("/v1/models"))
    assert line["code"] == "invalid_api_key"
    assert not {"tenant", "key_id"} & line.keys()


def test_nothing_that_a_client_wrote_is_in_it(site: Site, lines: Lines) -> None:
    """Send line breaks in path, query, header and method over a raw socket. No client library would send them."""
    host, port = httpx.URL(site.url).host, httpx.URL(site.url).port
    assert port is not None
    with socket.create_connection((host, port)) as connection:
        connection.sendall(
            b"PROPFIND /evil%0a%0d%1b[2J?evil=%0aevil HTTP/1.1\r\nhost: evil\r\nx-request-id: evil\t\x85evil\r\n"
            b"user-agent: evil\r\nconnection: close\r\n\r\n"
        )
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 404")
    (line,) = [line for line in lines() if line["logger"] == ACCESS]
    assert (line["method"], line["route"], line["message"]) == ("other", "none", "other none 404")
    assert "evil" not in str(lines()).lower()


def test_probes_that_go_well_are_no_news(site: Site, lines: Lines) -> None:
    with site.client(site.admin_key) as client:
        for path in ("/health/live", "/metrics"):
            assert client.get(path).status_code == 200
        refused = client.delete("/health/live")
    assert [line["request_id"] for line in lines()] == [refused.headers["x-request-id"]]
