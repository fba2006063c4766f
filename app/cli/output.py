"""What the command prints: results to stdout, everything else to stderr.

Names, messages and generated text come from other people. Control characters are taken out of them, and
they never pass through rich's markup, so that they can neither move the cursor nor restyle the terminal.
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

# Control, format (bidirectional overrides among them), surrogate, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def stderr() -> Console:
    """Where messages and progress go; made anew, as the stream may have been replaced."""
    return Console(stderr=True, highlight=False)


def stdout() -> Console:
    """Where results go; made anew, as the stream may have been replaced."""
    return Console(highlight=False)


def clean(value: object) -> str:
    """One line of text that is safe to show in a terminal."""
    return "".join(
        " " if character in "\n\r\t" else character
        for character in str(value)
        if character in "\n\r\t" or unicodedata.category(character) not in _HIDDEN
    )


def clean_prose(text: str) -> str:
    """Generated text for a terminal: line breaks and tabs stay, other control characters go."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cs"})


def note(message: str) -> None:
    """A message for people, on stderr."""
    stderr().print(Text(clean_lines(message)), soft_wrap=True)


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Say why on stderr and end with this exit code."""
    stderr().print(Text.assemble(("error: ", "bold red"), clean_lines(message)), soft_wrap=True)
    raise typer.Exit(code)


def clean_lines(message: str) -> str:
    """Several lines, each of them clean."""
    return "\n".join(clean(line) for line in message.split("\n"))


def emit_json(value: Any) -> None:
    """The result as JSON; ASCII only, so control characters arrive escaped."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def emit_json_line(value: Any) -> None:
    """One result of many as one line of JSON, written out at once."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def emit_json_error(body: Any) -> None:
    """A server's error as JSON, on stderr: stdout holds results only."""
    sys.stderr.write(json.dumps(body, indent=2) + "\n")


def emit_line(text: str) -> None:
    """The result as one line, written out at once."""
    sys.stdout.write(clean(text) + "\n")
    sys.stdout.flush()


def emit_table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], *, empty: str) -> None:
    """The result as a table.

    Args:
        columns: heading -> the key of a row.
        empty: said on stderr instead of a table without rows.
    """
    if not rows:
        note(empty)
        return
    _print_whole(table_of(columns, rows), stdout())


def table_of(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """The table that ``emit_table`` prints, for a screen that is drawn again and again."""
    return _table(list(columns), [[_cell(row.get(key)) for key in columns.values()] for row in rows])


def emit_record(record: Mapping[str, Any], keys: Sequence[str]) -> None:
    """The result as a table of two columns."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for key in keys:
        table.add_row(Text(key, style="bold"), Text(_cell(record.get(key))))
    _print_whole(table, stdout())


def show_reasons(reasons: Sequence[Mapping[str, Any]]) -> None:
    """Why an upload was refused: one sentence for each kind of reason, on stderr."""
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
    if isinstance(value, list | tuple):
        return ", ".join(clean(item) for item in value) or "-"
    return clean(value)
