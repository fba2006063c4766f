"""Template worker: renders chat templates written by administrators, each in a child process for one rendering.

:mod:`app.services.prompts.templates` runs it as ``python -m app.services.prompts.template_worker '<limits as JSON>'``,
without the server's environment. It reads requests from standard input and writes replies to standard output, one at a
time. Each message is a length of four bytes and JSON::

    {"template", "messages", "tools", "variables"} -> {"text"} or {"kind", "message", "line"}

The worker never parses a template itself. It forks, and the child parses and renders under limits of CPU time, address
space and output size. The child can open no file and holds no pipe but the one for its reply. So no rendering, however
it ends, can affect the next one. Only the standard library and Jinja are imported here.
"""

import html  # noqa: F401 - Jinja's filters import these four lazily; a child can open no file by then
import json
import os
import pprint  # noqa: F401
import resource
import select
import signal
import struct
import sys
import textwrap  # noqa: F401
import time
import unicodedata  # noqa: F401
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, BinaryIO, NoReturn

import jinja2
import jinja2.debug
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

LENGTH = struct.Struct(">I")

_MESSAGE_CHARS = 300
_REPLY_SLACK = 2**16
_TEMPLATE_FILES = {"<template>", "<unknown>"}
_OUT_OF_TIME = {signal.SIGPROF, signal.SIGXCPU, signal.SIGKILL}

# Rendered once at the start to trigger the lazy imports of Python and Jinja: a child can open no file.
_FAMILIAR = r"""{% macro turn(m) %}{{ '\n' + m.role|trim + m|tojson + strftime_now('%d %b %Y') }}{% endmacro %}
{% for message in messages %}{{ turn(message) }}{% endfor %}{{ messages|map(attribute='role')|join('\u00e9') }}
{{ raise_exception('no') }}"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one rendering.

    Attributes:
        cpu_seconds: CPU time.
        wall_seconds: wall-clock time, the last resort on a busy machine.
        address_bytes: address space of the process, including the interpreter's.
        output_bytes: size of the rendered text in UTF-8.
    """

    cpu_seconds: float
    wall_seconds: float
    address_bytes: int
    output_bytes: int


class Generation(jinja2.ext.Extension):
    """The tag ``{% generation %}``, which marks the assistant's words for training. Its body is printed unchanged."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class Raised(jinja2.TemplateError):
    """Raised by the template's ``raise_exception``: it refuses the conversation."""


def environment() -> jinja2.sandbox.SandboxedEnvironment:
    """Build the Jinja environment of chat templates, as in transformers' ``apply_chat_template``."""
    sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    sandbox.filters["tojson"] = _tojson
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = _strftime_now
    return sandbox


def render(request: dict[str, Any], output_bytes: int) -> dict[str, Any]:
    """Render one template. Call it only in a child process under limits."""
    try:
        tree = environment().parse(request["template"])
        tools = request["tools"]
        if tools is not None and "tools" not in jinja2.meta.find_undeclared_variables(tree):
            return _failure("tools", "the template does not support tools")
        template = environment().from_string(tree)
        context = {"messages": request["messages"], "tools": tools, "documents": None, "add_generation_prompt": True}
        return _written(template.generate(request["variables"] | context), output_bytes)
    except jinja2.TemplateSyntaxError as error:
        return _failure("syntax", str(error.message), error.lineno)
    except Raised as error:
        return _failure("raised", str(error.message), _line(error.__traceback__))
    except MemoryError:
        return _failure("memory", "it ran out of memory")
    except RecursionError as error:
        return _failure("failed", "it is nested too deeply", _line(error.__traceback__))
    except UnicodeEncodeError as error:
        return _failure("failed", "its output has an unpaired surrogate", _line(error.__traceback__))
    except OSError as error:
        return _failure("failed", "it needs a file, and templates cannot open files", _line(error.__traceback__))
    except Exception as error:  # noqa: BLE001 - a template's expressions can raise anything
        return _failure("failed", f"{type(error).__name__}: {error}", _line(error.__traceback__))


def _written(parts: Iterator[str], most: int) -> dict[str, Any]:
    kept, size = [], 0
    for part in parts:
        kept.append(part)
        size += len(part.encode())
        if size > most:
            return _failure("size", f"its output is larger than {most} bytes")
    return {"text": "".join(kept)}


def serve(source: BinaryIO, target: BinaryIO, limits: Limits) -> None:
    """Answer requests until the input ends."""
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        body = source.read(LENGTH.unpack(head)[0])
        reply = _in_child(json.loads(body), limits)
        target.write(LENGTH.pack(len(reply)) + reply)
        target.flush()


def _in_child(request: dict[str, Any], limits: Limits) -> bytes:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _child(request, writer, limits)
    os.close(writer)
    try:
        reply = b"".join(_received(reader, time.monotonic() + limits.wall_seconds, 6 * limits.output_bytes))
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if reply.endswith(b"\n"):
        return reply[:-1]
    late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in _OUT_OF_TIME
    seconds = f"it took more than {limits.cpu_seconds:g} s"
    return _encoded(_failure("time", seconds) if late else _failure("memory", "it ended without a result"))


def _received(reader: int, deadline: float, most: int) -> Iterator[bytes]:
    """Read the child's reply until it ends, the deadline passes, or it exceeds the size of any valid reply."""
    left = most + _REPLY_SLACK
    while left > 0 and select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not (data := os.read(reader, min(left, 2**16))):
            return
        left -= len(data)
        yield data


def _child(request: dict[str, Any], writer: int, limits: Limits) -> NoReturn:
    """Render and exit. The newline after the reply marks it as complete."""
    try:
        _confine(writer, limits)
        reply = _encoded(render(request, limits.output_bytes)) + b"\n"
        while reply:
            reply = reply[os.write(writer, reply) :]
    finally:
        os._exit(0)


def _confine(writer: int, limits: Limits) -> None:
    for descriptor in (0, 1, 2):
        if descriptor != writer:
            os.close(descriptor)
    _limit(resource.RLIMIT_AS, limits.address_bytes)
    _limit(resource.RLIMIT_CPU, int(limits.cpu_seconds) + 2)
    for nothing in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        _limit(nothing, 0)
    # This timer is finer than RLIMIT_CPU. Its signal also ends the process inside one long operation.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)


def _limit(limited: int, value: int) -> None:
    hard = resource.getrlimit(limited)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limited, (value, value))


def _failure(kind: str, message: str, line: int | None = None) -> dict[str, Any]:
    return {"kind": kind, "message": message[:_MESSAGE_CHARS], "line": line}


def _encoded(reply: dict[str, Any]) -> bytes:
    return json.dumps(reply).encode()


def _line(traceback: TracebackType | None) -> int | None:
    """Return the template line that was running. Jinja rewrites the traceback's frames to template lines."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename in _TEMPLATE_FILES:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialize JSON for prompts. Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise Raised(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the server's local date, as in transformers


if __name__ == "__main__":
    render({"template": _FAMILIAR, "messages": [{"role": "user"}], "tools": None, "variables": {}}, 2**20)
    serve(sys.stdin.buffer, sys.stdout.buffer, Limits(**json.loads(sys.argv[1])))
