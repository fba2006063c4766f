"""Log formatters: JSON for machines, text for people. No record can forge another log line.

The configuration is plain data: vLLM's processes read it from a file, so their lines have the same format.
"""

import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from opentelemetry.trace import format_trace_id

from app.observability.context import CURRENT
from app.settings import LogSettings

#: Logger of the access log: one line for each answered request.
ACCESS = "app.access"

#: uvicorn's access logger. It knows neither the tenant of a request nor which parts are confidential.
_UVICORN_ACCESS = "uvicorn.access"
_PACKAGES = ("app", "adapters", "uvicorn")
_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object a line. ASCII escapes keep text from ending the line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname, "logger": record.name}
        line |= {"message": record.getMessage(), **_fields(record)}
        if text := "".join(_traces(record)):
            line["exception"] = text.rstrip()
        return _encode(line)


class TextFormatter(logging.Formatter):
    """Formats a record as one line for people, with an indented traceback. Unprintable characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = _printable(f"{_time(record)} {record.levelname:<7} {record.name}: {record.getMessage()}{fields}")
        # Indent tracebacks: they quote errors, whose text could imitate a log line.
        return "\n    ".join([line, *map(_printable, "".join(_traces(record)).splitlines())])


def chosen_format(settings: LogSettings) -> Literal["json", "text"]:
    """Return the format of log lines: for ``auto``, text if standard error is a terminal now."""
    if settings.format == "auto":
        return "text" if sys.stderr.isatty() else "json"
    return settings.format


def log_config(settings: LogSettings, vllm_level: str) -> dict[str, Any]:
    """Build the argument of :func:`logging.config.dictConfig`, as JSON-compatible data. All output goes to stderr.

    Args:
        vllm_level: level of vLLM's loggers, which ``VLLM_LOGGING_LEVEL`` sets.
    """
    formatter = TextFormatter if chosen_format(settings) == "text" else JsonFormatter
    levels = dict.fromkeys(_PACKAGES, settings.level) | {"vllm": vllm_level}
    loggers: dict[str, Any] = {
        name: {"handlers": ["stderr"], "level": level, "propagate": False} for name, level in levels.items()
    }
    loggers[ACCESS] = {"level": settings.level if settings.access else "WARNING"}
    # Disable it by name: vLLM reconfigures logging and would propagate its access lines to ``uvicorn`` again.
    loggers[_UVICORN_ACCESS] = {"handlers": [], "level": settings.level, "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": f"{__name__}.{formatter.__name__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}},
        "loggers": loggers,
        "root": {"handlers": ["stderr"], "level": "WARNING"},
    }


def shared_with_vllm(config: Mapping[str, Any], home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Write a file and return variables that give vLLM's processes the same log format.

    The result is empty if the operator has configured vLLM's logging.

    Raises:
        OSError: HOME cannot be written.
    """
    if environ.get("VLLM_CONFIGURE_LOGGING") == "0" or "VLLM_LOGGING_CONFIG_PATH" in environ:
        return {}
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = home / "logging.json"
    path.write_text(json.dumps(config, indent=1))
    return {"VLLM_LOGGING_CONFIG_PATH": str(path.resolve())}


def _time(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.msecs):03d}Z"


@lru_cache(maxsize=2)
def _second(unix: int) -> str:
    """Format a time to the second in UTC; cached, because many lines share a second."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the request's fields, then the record's (``extra={"fields": {...}}``)."""
    request, own = CURRENT.get(), getattr(record, "fields", {})
    if request is None:
        return dict(own)
    fields = {"request_id": request.request_id, "tenant": request.tenant, "key_id": request.key_id}
    if (span := request.span.get_span_context()).is_valid:
        fields["trace_id"] = format_trace_id(span.trace_id)
    return {name: value for name, value in fields.items() if value is not None} | own


def _traces(record: logging.LogRecord) -> Iterator[str]:
    """Yield the record's traceback. If the request holds a prompt, omit error messages, which may quote it."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return
    request = CURRENT.get()
    if request is None or not request.confidential:
        yield from traceback.format_exception(error)
        return
    chain = [error]
    while (earlier := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(earlier)
    for cause in reversed(chain):
        yield from traceback.format_tb(cause.__traceback__)
        yield f"{type(cause).__qualname__}: message withheld, because it may quote the prompt\n"


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
