"""``tenora batch run`` from and to Parquet, with the wheel and its extra."""

import ast
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import package
from tests.support.batch_server import BatchServer, batch_server

_COMMAND_S = 300

WRITE = """
import datetime, decimal, sys
import pyarrow as pa
from pyarrow import parquet
rows = 1_500
table = pa.table({
    "text": ["How much?", None, "Why?"] * rows,
    "n": [1, 2, None] * rows,
    "at": [datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)] * 3 * rows,
    "price": [decimal.Decimal("1.20")] * 3 * rows,
    "tags": [["a", "b"], None, []] * rows,
    "kind": pa.array(["u", "v", "u"] * rows).dictionary_encode(),
})
parquet.write_table(table, sys.argv[1])
"""

#: Prints whether the columns of the first file are in the second, its added columns, and its first rows.
COMPARE = """
import json, sys
from pyarrow import parquet
before, after = map(parquet.read_table, sys.argv[1:])
same = all(
    after[name].to_pylist() == before[name].to_pylist() and after[name].type == before[name].type
    for name in before.column_names
)
added = after.select([name for name in after.column_names if name not in before.column_names])
print(json.dumps([same, after.num_rows, [str(field.type) for field in added.schema], added.slice(0, 3).to_pylist()]))
"""


@pytest.fixture(scope="module")
def folder() -> Path:
    assert package.PARQUET.is_current(), "The client has changed. Run `python3.11 -m tests.clients.install`."
    return package.PARQUET.folder


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with batch_server() as server:
        yield server


def run(folder: Path, *command: str, url: str = "", exit_code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [folder / "bin" / command[0], *command[1:]],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "TENORA_URL": url, "TENORA_KEY": "tnr_key"},
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr
    return done


def test_a_parquet_table_comes_out_scored(folder: Path, server: BatchServer, tmp_path: Path) -> None:
    before, after = tmp_path / "in.parquet", tmp_path / "in.answers.parquet"
    run(folder, "python", "-c", WRITE, str(before))
    result = run(folder, "tenora", "batch", "run", str(before), url=server.url, exit_code=1)
    assert "Rows without a prompt: 1500." in result.stderr
    same, rows, types, first = json.loads(run(folder, "python", "-c", COMPARE, str(before), str(after)).stdout)
    assert (same, rows) == (True, 4_500)
    assert types == ["string", "string", "int64", "int64", "string", "string"]
    assert [row["finish_reason"] for row in first] == ["stop", None, "stop"]
    assert [row["error"] for row in first] == [None, "The row has no prompt.", None]
    assert (first[0]["prompt_tokens"], first[0]["model_version"]) == (3, "unit/a@1")


def test_a_csv_comes_out_as_parquet(folder: Path, server: BatchServer, tmp_path: Path) -> None:
    before, after = tmp_path / "in.csv", tmp_path / "out.parquet"
    before.write_text("text,n\nHow much?,1\n")
    run(folder, "tenora", "batch", "run", str(before), "-o", str(after), url=server.url)
    read = "import sys; from pyarrow import parquet; print(parquet.read_table(sys.argv[1]).to_pylist())"
    (row,) = ast.literal_eval(run(folder, "python", "-c", read, str(after)).stdout)
    assert (row["text"], row["n"], row["finish_reason"]) == ("How much?", "1", "stop")


@pytest.mark.parametrize("content", [b"hello", b"PAR1" + b"x" * 100 + b"PAR1"])
def test_a_file_that_is_not_parquet_is_one_sentence(
    folder: Path, server: BatchServer, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "in.parquet").write_bytes(content)
    result = run(folder, "tenora", "batch", "run", str(tmp_path / "in.parquet"), url=server.url, exit_code=2)
    assert "in.parquet is not a Parquet file" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_column_that_is_no_text_is_told(folder: Path, server: BatchServer, tmp_path: Path) -> None:
    run(folder, "python", "-c", WRITE, str(tmp_path / "in.parquet"))
    arguments = ("batch", "run", str(tmp_path / "in.parquet"), "--column", "n")
    result = run(folder, "tenora", *arguments, url=server.url, exit_code=2)
    assert "Row 1 has a value of type int in the column n" in result.stderr
