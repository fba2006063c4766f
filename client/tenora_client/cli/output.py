"""Output of the command: results on stdout, everything else on stderr.

Names, messages and generated text are untrusted. Control characters are removed from them, and they bypass rich's
markup, so that they can neither move the cursor nor restyle the terminal.
"""

import json
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, NoReturn, Optional, TextIO

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tenora_client.cli.cells import cell, clean, short_cell
from tenora_client.cli.invocation import current
from tenora_client.cli.yaml_text import yaml_text

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "UNREACHABLE",
    "USAGE",
    "clean",
    "clean_prose",
    "emit_json",
    "emit_json_error",
    "emit_json_line",
    "emit_line",
    "emit_record",
    "emit_table",
    "fail",
    "messages_on",
    "note",
    "report",
    "show_reasons",
    "stderr",
    "stdout",
    "table_of",
]

FAILED, USAGE, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130

#: Stream of messages and progress; None: ``sys.stderr``.
_MESSAGES: ContextVar[Optional[TextIO]] = ContextVar("tenora_messages", default=None)

#: Narrowest column of a table, in characters. With less, each row is printed as a record.
_NARROWEST = 8

#: Keys of a row that name it, the first that it has.
_NAMES = ("id", "slug", "model", "name")


def stderr() -> Console:
    """Console for messages and progress. Created per call, since the stream may have been replaced."""
    return Console(file=_MESSAGES.get(), stderr=True, highlight=False)


@contextmanager
def messages_on(stream: TextIO) -> Iterator[None]:
    """Write messages and progress to a stream for the time of the block. Libraries log to ``sys.stderr`` meanwhile."""
    token = _MESSAGES.set(stream)
    try:
        yield
    finally:
        _MESSAGES.reset(token)


def stdout() -> Console:
    """Console for results. Created per call, since the stream may have been replaced."""
    return Console(highlight=False)


def clean_prose(text: str) -> str:
    """Return generated text without control characters. Line breaks and tabs stay."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cs"})


def note(message: str) -> None:
    """Print a message for people to stderr."""
    stderr().print(Text(clean_lines(message)), soft_wrap=True)


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Print an error to stderr and exit with this code."""
    report(message)
    raise typer.Exit(code)


def report(message: str) -> None:
    """Print an error to stderr."""
    stderr().print(Text.assemble(("error: ", "bold red"), clean_lines(message)), soft_wrap=True)


def clean_lines(message: str) -> str:
    """Clean each line of a message."""
    return "\n".join(clean(line) for line in message.split("\n"))


def emit_json(value: Any) -> None:
    """Print the result for a program, as JSON or as ``-o`` asks. It is ASCII, so control characters are escaped."""
    output = current().output
    if output == "name":
        _emit_names(value)
    elif output == "yaml":
        sys.stdout.write(yaml_text(value))
    else:
        sys.stdout.write(json.dumps(value, indent=2) + "\n")


def emit_json_line(value: Any) -> None:
    """Print one of several results and flush it: a line of JSON, a YAML document, or a name."""
    output = current().output
    if output == "name":
        _emit_names(value)
    elif output == "yaml":
        sys.stdout.write(f"---\n{yaml_text(value)}")
    else:
        sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _emit_names(value: Any) -> None:
    rows = value if isinstance(value, list) else [value]
    for row in rows:
        name = next((row[key] for key in _NAMES if row.get(key)), None) if isinstance(row, dict) else None
        if name is None:
            fail("The result of this command has no name. Use -o json.", USAGE)
        emit_line(str(name))


def emit_json_error(body: Any) -> None:
    """Print the server's error as JSON to stderr, since stdout holds results only."""
    sys.stderr.write(json.dumps(body, indent=2) + "\n")


def emit_line(text: str) -> None:
    """Print the result as one line and flush it."""
    sys.stdout.write(clean(text) + "\n")
    sys.stdout.flush()


def emit_table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], *, empty: str) -> None:
    """Print the result as a table.

    Args:
        columns: key of a row by heading.
        empty: message for stderr in place of a table without rows.
    """
    if not rows:
        note(empty)
    elif stdout().is_terminal:
        stdout().print(table_of(columns, rows))
    else:
        cells = [[_shown(key, row.get(key)) for key in columns.values()] for row in rows]
        sys.stdout.write(_plain([list(columns), *cells]))


def table_of(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Build the table of ``emit_table``, for a screen that refreshes."""
    return _table(list(columns), [[_shown(key, row.get(key)) for key in columns.values()] for row in rows])


def emit_record(record: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Print the result as a table of two columns."""
    cells = [(key, _shown(key, record.get(key))) for key in keys]
    if stdout().is_terminal:
        stdout().print(_record(cells))
    else:
        sys.stdout.write(_plain(cells))


def _record(cells: Sequence[tuple[str, str]]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for heading, text in cells:
        table.add_row(Text(heading, style="bold"), Text(text))
    return table


def _shown(key: str, value: Any) -> str:
    """Return a cell: short at a terminal, whole in a pipe and with ``-o wide``."""
    if stdout().is_terminal and current().output != "wide":
        return short_cell(key, value, datetime.now(timezone.utc))
    return cell(value)


def show_reasons(reasons: Sequence[Mapping[str, Any]]) -> None:
    """Print the reasons of a refused upload to stderr, one line each."""
    for reason in reasons:
        note(f"- {clean(reason.get('message') or cell(reason.get('field')))}")


def _table(headings: list[str], rows: list[list[str]]) -> Table:
    """Build a table with a frame, or a record for each row where the terminal has no room for the columns."""
    if stdout().width < len(headings) * _NARROWEST:
        table = Table(show_header=False, box=None, pad_edge=False)
        for row in rows:
            table.add_row(_record(list(zip(headings, row))))
            table.add_row("")
        return table
    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    return table


def _plain(rows: Sequence[Sequence[str]]) -> str:
    """Return columns without frames, two spaces apart, and never folded: a pipe has no width."""
    widths = [max(map(cell_len, column)) for column in zip(*rows)]
    lines = ("".join(set_cell_size(text, width + 2) for text, width in zip(row, widths)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)
