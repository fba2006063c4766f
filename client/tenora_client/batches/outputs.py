"""Outputs of a batch: its answers and errors as JSONL, CSV or Parquet, in the order of the input, read as a stream."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tenora_client.atomic_files import new_file
from tenora_client.batches import parquet
from tenora_client.batches.inputs import Input
from tenora_client.batches.lines import BadInput

#: Columns that are added to a table, with Arrow's names of their types.
COLUMNS = (
    ("answer", "string"),
    ("finish_reason", "string"),
    ("prompt_tokens", "int64"),
    ("output_tokens", "int64"),
    ("error", "string"),
    ("model_version", "string"),
)
FORMATS = (".jsonl", ".csv", ".parquet")
_NO_PROMPT = "The row has no prompt."
_NO_RESULT = "The batch ended before this line ran."


@dataclass(frozen=True)
class Result:
    """Line of an output or error file.

    Attributes:
        line: the line as the server wrote it, without a line break.
    """

    custom_id: str
    line: bytes
    record: dict[str, Any]


@dataclass
class Written:
    """Number of lines that were written, and of those with an error."""

    lines: int = 0
    failed: int = 0


def check_target(target: Path, columns: Sequence[str]) -> None:
    """Check that an output can be written in the form that its suffix names.

    Args:
        columns: the columns of the input that the output keeps.

    Raises:
        BadInput: the suffix is unknown, pyarrow is missing, or a column of the input has the name of an added one.
    """
    suffix = target.suffix.lower()
    if suffix not in FORMATS:
        raise BadInput(f"{target} has the suffix {suffix!r}. The output can be {', '.join(FORMATS)}: give such an -o.")
    if suffix == ".parquet":
        parquet.check_installed()
    taken = [name for name, _ in COLUMNS if name in columns]
    if suffix != ".jsonl" and taken:
        raise BadInput(f"The input has a column {taken[0]!r}, which the output adds. Rename it in the input.")


def write_output(source: Input, results: Sequence[Path], target: Path) -> Written:
    """Write the results in the order of the input. The file appears once it is complete.

    Args:
        results: the batch's output and error file, as far as it has them.

    Raises:
        BadInput: pyarrow is missing, or the input has changed.
        OSError: a file cannot be read or written.
    """
    written = Written()
    with ExitStack() as stack:
        write = stack.enter_context(_writer(target, source.columns, source.schema))
        cursors = [_Cursor(stack.enter_context(_results(path))) for path in results]
        for item in source.items():
            result = next((taken for cursor in cursors if (taken := cursor.take(item.custom_id))), None)
            reason = _NO_PROMPT if item.request is None else _NO_RESULT
            write(item.cells, item.custom_id, result, reason)
            written.lines += 1
            written.failed += result is None or is_error(result.record)
    return written


def write_results(results: Sequence[Path], target: Path) -> Written:
    """Write the answers, then the errors, without the input. The file appears once it is complete.

    Raises: as :func:`write_output`.
    """
    written = Written()
    with ExitStack() as stack:
        write = stack.enter_context(_writer(target, ("custom_id",), None))
        for path in results:
            for result in stack.enter_context(_results(path)):
                write((result.custom_id,), result.custom_id, result, "")
                written.lines += 1
                written.failed += is_error(result.record)
    return written


def is_error(record: dict[str, Any]) -> bool:
    """Return whether a line of an output has no answer."""
    response = record.get("response")
    return not isinstance(response, dict) or record.get("error") is not None or response.get("status_code") != 200


def cells_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values of :data:`COLUMNS` for a line of an output or error file."""
    version = _dict(record.get("tenora")).get("version")
    if is_error(record):
        return None, None, None, None, _reason(record), version
    body = _dict(_dict(record["response"]).get("body"))
    text, reason = _text(body)
    prompt, output = _tokens(body)
    return text, reason, prompt, output, None, version


Write = Callable[[Sequence[Any], str, "Result | None", str], None]


class _Cursor:
    """Position in a file of results, which are in the order of the input."""

    def __init__(self, results: Iterator[Result]) -> None:
        self._results, self._next = results, next(results, None)

    def take(self, custom_id: str) -> Result | None:
        """Return the next result if it is that of this line, and move on."""
        result = self._next
        if result is None or result.custom_id != custom_id:
            return None
        self._next = next(self._results, None)
        return result


@contextmanager
def _results(path: Path) -> Iterator[Iterator[Result]]:
    with path.open("rb") as file:
        yield _parsed(path, file)


def _parsed(path: Path, lines: Iterable[bytes]) -> Iterator[Result]:
    return (_parsed_line(path, line) for line in lines)


def _parsed_line(path: Path, line: bytes) -> Result:
    try:
        record = msgspec.json.decode(line)
        return Result(record["custom_id"], line.rstrip(b"\r\n"), record)
    except (msgspec.DecodeError, KeyError, TypeError):
        raise BadInput(f"{path.name} has a line that no Tenora server writes. Download it again.") from None


@contextmanager
def _writer(target: Path, columns: Sequence[str], schema: Any) -> Iterator[Write]:
    """Yield the function that writes a row in the form of the target's suffix."""
    forms = {".jsonl": _jsonl_writer, ".csv": _csv_writer, ".parquet": _parquet_writer}
    with new_file(target) as part, forms[target.suffix.lower()](part, columns, schema) as write:
        yield write


@contextmanager
def _jsonl_writer(part: Path, _: Sequence[str], __: Any) -> Iterator[Write]:
    with part.open("xb") as file:

        def write(_: Sequence[Any], custom_id: str, result: Result | None, reason: str) -> None:
            if result is not None:
                line = result.line
            else:
                error = {"code": "not_run", "message": reason}
                line = msgspec.json.encode({"id": None, "custom_id": custom_id, "response": None, "error": error})
            file.write(line + b"\n")

        yield write


@contextmanager
def _csv_writer(part: Path, columns: Sequence[str], _: Any) -> Iterator[Write]:
    with part.open("x", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*columns, *(name for name, _ in COLUMNS)])

        def write(cells: Sequence[Any], _: str, result: Result | None, reason: str) -> None:
            table.writerow([*cells, *_added(result, reason)])

        yield write


@contextmanager
def _parquet_writer(part: Path, columns: Sequence[str], schema: Any) -> Iterator[Write]:
    with parquet.ParquetWriter(part, schema, columns, COLUMNS) as table:

        def write(cells: Sequence[Any], _: str, result: Result | None, reason: str) -> None:
            table.write([*cells, *_added(result, reason)])

        yield write


def _added(result: Result | None, reason: str) -> tuple[Any, ...]:
    return (None, None, None, None, reason, None) if result is None else cells_of(result.record)


def _reason(record: dict[str, Any]) -> str:
    """Return the sentence of a line without an answer."""
    body = _dict(_dict(record.get("response")).get("body"))
    for error in (record.get("error"), body.get("error")):
        message = error.get("message") if isinstance(error, dict) else error
        if message:
            return str(message)
    return str(_dict(record.get("error")).get("code") or "The server gave no reason.")


def _text(body: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the text of an answer of any endpoint, and why it ended."""
    if "generated_text" in body:
        return body["generated_text"], _dict(body.get("details")).get("finish_reason")
    if isinstance(body.get("output"), list):
        parts = [part for item in body["output"] for part in _dict(item).get("content") or ()]
        words = "".join(part["text"] for part in parts if isinstance(_dict(part).get("text"), str))
        return words, _dict(body.get("incomplete_details")).get("reason") or body.get("status")
    choices = body.get("choices")
    choice = _dict(choices[0]) if isinstance(choices, list) and choices else {}
    text = _dict(choice.get("message")).get("content", choice.get("text"))
    return text if isinstance(text, str) else None, choice.get("finish_reason")


def _tokens(body: dict[str, Any]) -> tuple[int | None, int | None]:
    usage, details = _dict(body.get("usage")), _dict(body.get("details"))
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", details.get("prompt_tokens")))
    output = usage.get("completion_tokens", usage.get("output_tokens", details.get("generated_tokens")))
    return prompt, output


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
