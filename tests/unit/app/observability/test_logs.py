"""Format of log lines, and protection against log injection."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.observability.context import CURRENT, RequestContext
from app.observability.logs import ACCESS, JsonFormatter, TextFormatter, log_config, shared_with_vllm
from app.settings import LogSettings

#: Characters that end a line, or do worse, in some terminal or log reader.
HOSTILE = 'x\n2026-01-01T00:00:00.000Z ERROR   app.forged: line\r\x1b[2J\x00\x85\u2028\u2029"}\n{"level":"ERROR"}\udcff'


@pytest.fixture
def request_context() -> Iterator[RequestContext]:
    context = RequestContext("f" * 32, tenant="retail", key_id="k1")
    token = CURRENT.set(context)
    yield context
    CURRENT.reset(token)


def record(message: str, *args: object, error: BaseException | None = None, **extra: object) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("app.part", logging.WARNING, "part.py", 1, message, args, exc_info)
    made.__dict__ |= extra
    return made


def raised(words: str) -> BaseException:
    """Return an error with a cause, both with a traceback."""
    try:
        try:
            {}[words]
        except KeyError as error:
            raise ValueError(f"again {words}") from error
    except ValueError as error:
        return error


def test_a_json_line() -> None:
    line = json.loads(
        JsonFormatter().format(record("said %s", "so", fields={"status": 200}, created=1795315200.125, msecs=125.0))
    )
    assert line.pop("time") == "2026-11-22T02:40:00.125Z"
    assert line == {"level": "WARNING", "logger": "app.part", "message": "said so", "status": 200}


def test_a_line_of_a_request_says_whose_it_is(request_context: RequestContext) -> None:
    line = json.loads(JsonFormatter().format(record("x")))
    assert (line["request_id"], line["tenant"], line["key_id"]) == ("f" * 32, "retail", "k1")
    text = TextFormatter().format(record("x"))
    assert text.endswith(f"WARNING app.part: x request_id={'f' * 32} tenant=retail key_id=k1")


def test_what_is_not_known_is_left_out(request_context: RequestContext) -> None:
    request_context.tenant = None
    assert "tenant" not in json.loads(JsonFormatter().format(record("x")))


@pytest.mark.parametrize("place", ["argument", "message", "field"])
def test_no_text_ends_a_line(place: str) -> None:
    made = {
        "argument": record("said %s", HOSTILE),
        "message": record(HOSTILE),
        "field": record("x", fields={"tenant": HOSTILE}),
    }[place]
    for formatter in (JsonFormatter(), TextFormatter()):
        line = formatter.format(made)
        assert line.isprintable()
        assert len(line.splitlines()) == 1
    assert any(HOSTILE in str(value) for value in json.loads(JsonFormatter().format(made)).values())


def test_no_error_begins_a_line() -> None:
    made = record("failed", error=raised(HOSTILE))
    assert JsonFormatter().format(made).isprintable()
    first, *rest = TextFormatter().format(made).split("\n")
    assert first.endswith("app.part: failed")
    assert len(rest) > 5
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_errors_of_requests_with_prompts_lose_their_words(formatter: logging.Formatter) -> None:
    made = record("failed", error=raised("zq-said"))
    assert "zq-said" in formatter.format(made)
    token = CURRENT.set(RequestContext("f" * 32, confidential=True))
    try:
        told = formatter.format(made)
    finally:
        CURRENT.reset(token)
    assert "zq-said" not in told
    assert "KeyError" in told
    assert "ValueError" in told
    assert "in raised" in told


def test_auto_is_json_unless_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def formatter(choice: str) -> str:
        config = log_config(LogSettings(format=choice), "INFO")
        return str(config["formatters"]["line"]["()"]).rpartition(".")[2]

    assert [formatter("json"), formatter("text"), formatter("auto")] == [
        "JsonFormatter",
        "TextFormatter",
        "JsonFormatter",
    ]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert [formatter("json"), formatter("auto")] == ["JsonFormatter", "TextFormatter"]


def test_levels() -> None:
    loggers = log_config(LogSettings(level="ERROR", access=True), "DEBUG")["loggers"]
    assert {name: logger["level"] for name, logger in loggers.items()} == {
        "app": "ERROR",
        "adapters": "ERROR",
        "uvicorn": "ERROR",
        "vllm": "DEBUG",
        ACCESS: "ERROR",
        "uvicorn.access": "ERROR",
    }
    assert log_config(LogSettings(access=False), "INFO")["loggers"][ACCESS]["level"] == "WARNING"


def test_every_process_logs_the_same_way(tmp_path: Path) -> None:
    """As in vLLM's processes: the configuration comes from the file, and all loggers write JSON."""
    config = log_config(LogSettings(format="json"), "INFO")
    variables = shared_with_vllm(config, tmp_path / "home", {})
    script = (
        "import json, logging, logging.config, os, pathlib\n"
        "path = os.environ['VLLM_LOGGING_CONFIG_PATH']\n"
        "logging.config.dictConfig(json.loads(pathlib.Path(path).read_text()))\n"
        "for name in ('vllm.v1.engine', 'uvicorn.error', 'app.main', 'adapters', 'app.access'):\n"
        "    logging.getLogger(name).info('from %s', name)\n"
        "logging.getLogger('another.library').info('too much')\n"
        "logging.getLogger('another.library').warning('from another.library')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=True)
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["message"] for line in said] == [f"from {line['logger']}" for line in said]
    assert len(said) == 6


@pytest.mark.parametrize("own", [{"VLLM_LOGGING_CONFIG_PATH": "/its/own"}, {"VLLM_CONFIGURE_LOGGING": "0"}])
def test_who_configured_vllms_log_keeps_it(tmp_path: Path, own: dict[str, str]) -> None:
    assert shared_with_vllm(log_config(LogSettings(), "INFO"), tmp_path, own) == {}
    assert not (tmp_path / "logging.json").exists()
