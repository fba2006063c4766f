"""Read and write Parquet with pyarrow, which is an extra of this package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tenora_client.batches.lines import BadInput

#: Rows that are held in memory at once.
_ROWS = 1_000


def schema_of(path: Path) -> Any:
    """Return the Arrow schema of a file.

    Raises:
        BadInput: the file is not Parquet, or pyarrow is missing.
        OSError: it cannot be read.
    """
    arrow, file = _opened(path)
    with file:
        schema = file.schema_arrow
    names = schema.names
    if double := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(f"{path.name} has two columns with the name {double!r}. Rename one of them.")
    if not names:
        raise BadInput(f"{path.name} has no columns. Give a table with a column of prompts.")
    # Drops what other libraries note about the columns, which does not fit the output table.
    return arrow.schema(list(schema)).remove_metadata()


def rows_of(path: Path) -> Iterator[Sequence[Any]]:
    """Yield the rows of a file.

    Raises:
        BadInput: the file is damaged, or pyarrow is missing.
        OSError: it cannot be read.
    """
    arrow, file = _opened(path)
    with file:
        batches = file.iter_batches(batch_size=_ROWS)
        while True:
            try:
                batch = next(batches, None)
            except (arrow.ArrowException, OSError) as error:
                raise BadInput(f"{path.name} is a damaged Parquet file: {_first_line(error)}.") from None
            if batch is None:
                return
            yield from zip(*(column.to_pylist() for column in batch.columns))


class ParquetWriter:
    """Parquet file that is written row by row.

    Args:
        schema: Arrow schema of the first columns; None: they are texts.
        columns: names of the first columns.
        more: names of the further columns, with Arrow's names of their types.

    Raises (every method):
        BadInput: pyarrow is missing.
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, schema: Any, columns: Sequence[str], more: Sequence[tuple[str, str]]) -> None:
        self._arrow, parquet = _pyarrow()
        first = list(schema) if schema is not None else [self._arrow.field(name, "string") for name in columns]
        self._schema = self._arrow.schema([*first, *(self._arrow.field(name, kind) for name, kind in more)])
        self._file = parquet.ParquetWriter(path, self._schema)
        self._rows: list[Sequence[Any]] = []

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._file.close()

    def write(self, row: Sequence[Any]) -> None:
        """Append a row."""
        self._rows.append(row)
        if len(self._rows) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = zip(self._schema, zip(*self._rows))
            arrays = [self._arrow.array(values, type=field.type) for field, values in columns]
            self._file.write_batch(self._arrow.record_batch(arrays, schema=self._schema))
            self._rows.clear()


def check_installed() -> None:
    """Check that pyarrow is installed.

    Raises:
        BadInput: it is missing.
    """
    _pyarrow()


def _opened(path: Path) -> tuple[Any, Any]:
    arrow, parquet = _pyarrow()
    with path.open("rb"):
        pass  # raises an error with the name of the file
    try:
        return arrow, parquet.ParquetFile(path)
    except (arrow.ArrowException, OSError) as error:
        raise BadInput(f"{path.name} is not a Parquet file: {_first_line(error)}.") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise BadInput("Parquet files need pyarrow. Install it: pip install 'tenora-client[parquet]'.") from None
    return arrow, parquet
