"""Output of the command: results on stdout, everything else on stderr.

Names, messages and generated text are untrusted. Control characters are removed from them, and they bypass rich's
markup, so that they can neither move the cursor nor restyle the terminal.
"""

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

FAILED, USAGE, UNREACHABLE = 1, 2, 3

_UNFOLDED = 10_000

# Control, format (bidirectional overrides among them), surrogate, and line and paragraph separator characters.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def stderr() -> Console:
    """Console for messages and progress. Created per call, since the stream may have been replaced."""
    return Console(stderr=True, highlight=False)


def stdout() -> Console:
    """Console for results. Created per call, since the stream may have been replaced."""
    return Console(highlight=False)


def clean(value: object) -> str:
    """Return the value as one line of text that is safe for a terminal."""
    return "".join(
        " " if character in "\n\r\t" else character
        for character in str(value)
        if character in "\n\r\t" or unicodedata.category(character) not in _HIDDEN
    )


def clean_prose(text: str) -> str:
    """Return generated text without control characters. Line breaks and tabs stay."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cs"})


def note(message: str) -> None:
    """Print a message for people to stderr."""
    stderr().print(Text(clean_lines(message)), soft_wrap=True)


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Print an error to stderr and exit with this code."""
    stderr().print(Text.assemble(("error: ", "bold red"), clean_lines(message)), soft_wrap=True)
    raise typer.Exit(code)


def clean_lines(message: str) -> str:
    """Clean each line of a message."""
    return "\n".join(clean(line) for line in message.split("\n"))


def emit_json(value: Any) -> None:
    """Print the result as JSON. It is ASCII only, so control characters are escaped."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def emit_json_line(value: Any) -> None:
    """Print one of several results as a line of JSON and flush it."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


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
        return
    _print_whole(table_of(columns, rows), stdout())


def table_of(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Build the table of ``emit_table``, for a screen that refreshes."""
    return _table(list(columns), [[_cell(row.get(key)) for key in columns.values()] for row in rows])


def emit_record(record: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Print the result as a table of two columns."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for key in keys:
        table.add_row(Text(key, style="bold"), Text(_cell(record.get(key))))
    _print_whole(table, stdout())


def show_reasons(reasons: Sequence[Mapping[str, Any]]) -> None:
    """Print the reasons of a refused upload to stderr, one line each."""
    for reason in reasons:
        note(f"- {clean(reason.get('message') or _cell(reason.get('field')))}")


def _table(headings: list[str], rows: list[list[str]]) -> Table:
    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _print_whole(table: Table, console: Console) -> None:
    if not console.is_terminal:
        # A pipe has no width: rich would fold names at column 80.
        console.width = _UNFOLDED
        console.width = console.measure(table).maximum
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(key)} -> {clean(item)}" for key, item in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(clean(item) for item in value) or "-"
    return clean(value)
