"""Inputs of a batch: JSONL, plain text, CSV and Parquet, read as a stream."""

from __future__ import annotations

import csv
import difflib
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tenora_client.batches import parquet
from tenora_client.batches.lines import (
    CHAT,
    ENDPOINTS,
    BadInput,
    Item,
    LineOptions,
    endpoint_of,
    prompt_item,
    record_item,
)
from tenora_client.closing import closing

#: Longest line that is read, in bytes. Servers accept much less.
_MAX_LINE = 16 * 2**20
_CHUNK_BYTES = 2**20
_BOM = b"\xef\xbb\xbf"
_JSONL, _CSV, _PARQUET = (".jsonl", ".ndjson", ".json"), (".csv",), (".parquet", ".pq")
#: Columns that hold the prompt if no column is named.
_USUAL_COLUMNS = ("prompt", "text")


@dataclass(frozen=True)
class Input:
    """Input file of a batch.

    Attributes:
        columns: names of an item's cells, which are the output table's first columns.
        column: column of a table with the prompts; None for an input without columns.
        schema: Arrow's schema of the columns; None if the input is not Parquet.
    """

    path: Path
    options: LineOptions
    columns: Sequence[str]
    column: str | None = None
    schema: Any = None

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        endpoint: str | None = None,
        column: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> Input:
        """Open an input. Its suffix tells its form; one with another suffix is text with one prompt a line.

        Args:
            endpoint: route of all lines; None: that of the first full line, else chats.
            column: column of a table with the prompts; None: ``prompt`` or ``text``, or the only one.

        Raises:
            BadInput: the file has not this form, or lacks the column.
            OSError: it cannot be read.
        """
        suffix = path.suffix.lower()
        if suffix not in (*_CSV, *_PARQUET) and column is not None:
            raise BadInput(f"{path.name} has no columns. Leave out --column, or give a .csv or .parquet file.")
        if suffix in _JSONL:
            endpoint = endpoint or _first_endpoint(path)
        options = LineOptions(endpoint or CHAT, max_tokens, temperature)
        if suffix in _JSONL:
            return cls(path, options, ("custom_id",))
        if suffix in _CSV:
            columns = _csv_header(path)
            return cls(path, options, columns, _prompt_column(path, columns, column))
        if suffix in _PARQUET:
            schema = parquet.schema_of(path)
            return cls(path, options, schema.names, _prompt_column(path, schema.names, column), schema)
        return cls(path, options, ("prompt",))

    def items(self) -> Iterator[Item]:
        """Yield the items in order.

        Raises:
            BadInput: a line cannot be used; the message has its number.
            OSError: the file cannot be read.
        """
        suffix, ids = self.path.suffix.lower(), set()
        if suffix in _JSONL:
            items = _jsonl_items(self.path, self.options)
        elif suffix in _CSV:
            items = self._table_items(_csv_rows(self.path, self.columns))
        elif suffix in _PARQUET:
            items = self._table_items(parquet.rows_of(self.path))
        else:
            items = _text_items(self.path, self.options)
        with closing(items):
            for item in items:
                # A digest takes less memory than an id of 512 characters.
                key = hashlib.blake2b(item.custom_id.encode(), digest_size=16).digest()
                if key in ids:
                    raise BadInput(
                        f"Line {item.number} has the custom_id {item.custom_id[:80]!r} of an earlier line. Give each "
                        "line another one."
                    )
                ids.add(key)
                yield item

    def _table_items(self, rows: Iterator[Sequence[Any]]) -> Iterator[Item]:
        place = self.columns.index(self.column or "")
        for number, row in enumerate(rows, 1):
            prompt, custom_id = row[place], f"row-{number}"
            if prompt is None or (isinstance(prompt, str) and not prompt.strip()):
                yield Item(number, custom_id, None, row)
            elif isinstance(prompt, str):
                yield prompt_item(number, custom_id, prompt, self.options, row)
            else:
                raise BadInput(
                    f"Row {number} has a value of type {type(prompt).__name__} in the column {self.column}. Name a "
                    "column with text."
                )


def digest_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_requests(source: Input, target: BinaryIO) -> tuple[int, int]:
    """Write the lines of the batch.

    Returns:
        Number of lines, and number of rows without a prompt, which have no line.

    Raises:
        BadInput: a line cannot be used, or there is none.
        OSError: a file cannot be read or written.
    """
    written = skipped = 0
    for item in source.items():
        if item.request is None:
            skipped += 1
            continue
        target.write(item.request + b"\n")
        written += 1
    if not written:
        raise BadInput(f"{source.path.name} has no prompts. Give a file with at least one.")
    return written, skipped


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_MAX_LINE + 1):
            number += 1
            if len(line) > _MAX_LINE:
                raise BadInput(f"Line {number} of {path.name} is longer than {_MAX_LINE >> 20} MiB. Shorten it.")
            line = line.removeprefix(_BOM) if number == 1 else line
            if line.strip():
                yield number, line


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in _lines(path):
        yield number, _json(path, number, line)


def _json(path: Path, number: int, line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise BadInput(f"Line {number} of {path.name} is not valid JSON: {error}.") from None
    except UnicodeDecodeError:
        raise _not_utf8(path, number) from None
    except RecursionError:
        raise BadInput(f"Line {number} of {path.name} is nested too deeply. Simplify it.") from None


def _jsonl_items(path: Path, options: LineOptions) -> Iterator[Item]:
    for number, record in _records(path):
        yield record_item(number, record, options)


def _first_endpoint(path: Path) -> str | None:
    """Return the route of the first line, if that is a full one of a batch."""
    with closing(_records(path)) as records:
        _, record = next(records, (0, None))
    endpoint = endpoint_of(record)
    if endpoint is not None and endpoint not in ENDPOINTS:
        raise BadInput(f"Line 1 of {path.name} has the url {endpoint[:80]!r}. Write one of {', '.join(ENDPOINTS)}.")
    return endpoint


def _text_items(path: Path, options: LineOptions) -> Iterator[Item]:
    for number, line in _lines(path):
        if not _is_utf8(line):
            raise _not_utf8(path, number)
        prompt = line.decode().rstrip("\r\n")
        if "\0" in prompt:
            raise BadInput(f"Line {number} of {path.name} is not text. Give a file with one prompt a line.")
        yield prompt_item(number, f"line-{number}", prompt, options, (prompt,))


def _csv_header(path: Path) -> Sequence[str]:
    with closing(_csv_records(path)) as records:
        header: Sequence[str] = next(records, [])
    if not any(header):
        raise BadInput(f"{path.name} has no header. Write the names of the columns into its first line.")
    if double := next((name for name in header if header.count(name) > 1), None):
        raise BadInput(f"{path.name} has two columns with the name {double!r}. Rename one of them.")
    return header


def _csv_rows(path: Path, columns: Sequence[str]) -> Iterator[Sequence[str]]:
    records = _csv_records(path)
    next(records, None)
    for number, row in enumerate(records, 1):
        if len(row) != len(columns):
            raise BadInput(
                f"Row {number} of {path.name} has {len(row)} cells, and the header has {len(columns)}. Check its "
                "commas and quotes."
            )
        yield row


def _csv_records(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file, _long_cells():
        reader = csv.reader(file, strict=True)
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                raise BadInput(f"Line {reader.line_num} of {path.name} is not valid CSV: {error}.") from None
            except UnicodeDecodeError:
                # The text is decoded in chunks, so the position of the reader tells little.
                raise _not_utf8(path, _first_bad_line(path)) from None
            if row is None:
                return
            if row:
                yield row


@contextmanager
def _long_cells() -> Iterator[None]:
    """Raise the limit of the csv module, 128 KiB a cell, for the time of the block."""
    before = csv.field_size_limit(_MAX_LINE)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _first_bad_line(path: Path) -> int:
    with path.open("rb") as file:
        return next((number for number, line in enumerate(file, 1) if not _is_utf8(line)), 0)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _not_utf8(path: Path, number: int) -> BadInput:
    return BadInput(f"Line {number} of {path.name} is not UTF-8. Save the file with this encoding.")


def _prompt_column(path: Path, columns: Sequence[str], name: str | None) -> str:
    shown = ", ".join(columns)
    if name is not None:
        if name in columns:
            return name
        near = difflib.get_close_matches(name, columns, n=1)
        question = f" Did you mean {near[0]!r}?" if near else ""
        raise BadInput(f"{path.name} has no column {name!r}.{question} Its columns are {shown}.")
    if len(columns) == 1:
        return columns[0]
    usual = [column for column in _USUAL_COLUMNS if column in columns]
    if len(usual) != 1:
        raise BadInput(f"Name the column of {path.name} that holds the prompts: --column. Its columns are {shown}.")
    return usual[0]
