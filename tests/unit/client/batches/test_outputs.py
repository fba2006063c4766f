"""Outputs of a batch: in the order of the input, in every form."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tenora_client.batches.inputs import Input
from tenora_client.batches.lines import BadInput
from tenora_client.batches.outputs import COLUMNS, cells_of, check_target, write_output, write_results

NAMES = [name for name, _ in COLUMNS]


def answer(custom_id: str, text: str) -> dict[str, Any]:
    body = {
        "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    response = {"status_code": 200, "request_id": "r", "body": body}
    return {"custom_id": custom_id, "response": response, "error": None, "tenora": {"version": "retail/pricing@3"}}


def failure(custom_id: str, message: str) -> dict[str, Any]:
    return {"custom_id": custom_id, "response": None, "error": {"code": "batch_expired", "message": message}}


def save(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def results(tmp_path: Path) -> list[Path]:
    """Output and error file of a batch of four rows, of which the second has no prompt and the last no result."""
    return [save(tmp_path / "file-o", answer("row-1", "eins")), save(tmp_path / "file-e", failure("row-3", "too late"))]


@pytest.fixture
def table(tmp_path: Path) -> Input:
    (tmp_path / "in.csv").write_text("text,n\na,1\n,2\nc,3\nd,4\n")
    return Input.open(tmp_path / "in.csv")


def test_a_table_keeps_its_rows_and_gets_columns(tmp_path: Path, table: Input, results: list[Path]) -> None:
    written = write_output(table, results, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["text", "n", *NAMES]
    assert rows == [
        ["a", "1", "eins", "stop", "3", "2", "", "retail/pricing@3"],
        ["", "2", "", "", "", "", "The row has no prompt.", ""],
        ["c", "3", "", "", "", "", "too late", ""],
        ["d", "4", "", "", "", "", "The batch ended before this line ran.", ""],
    ]
    assert (written.lines, written.failed) == (4, 3)


def test_jsonl_has_the_servers_lines_in_the_order_of_the_input(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')
    errors = save(tmp_path / "file-e", failure("line-1", "late"))
    answers = save(tmp_path / "file-o", answer("line-2", "zwei"), answer("line-3", "drei"))
    write_output(Input.open(tmp_path / "in.jsonl"), [answers, errors], tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == [failure("line-1", "late"), answer("line-2", "zwei"), answer("line-3", "drei")]


def test_results_without_their_input_have_the_ids(tmp_path: Path, results: list[Path]) -> None:
    written = write_results(results, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["custom_id"], row["answer"], row["error"]) for row in rows] == [
        ("row-1", "eins", ""),
        ("row-3", "", "too late"),
    ]
    assert (written.lines, written.failed) == (2, 1)


def test_nothing_is_left_of_an_output_that_fails(tmp_path: Path, table: Input, results: list[Path]) -> None:
    results[0].write_text('{"custom_id": "row-1"}\nno JSON\n')
    with pytest.raises(BadInput, match="Download it again"):
        write_output(table, results, tmp_path / "out.csv")
    assert not [path for path in tmp_path.iterdir() if "out.csv" in path.name]


BODIES = [
    ({"choices": [{"text": "a", "finish_reason": "length"}], "usage": {"prompt_tokens": 1}}, ("a", "length", 1, None)),
    (
        {
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "a"}, {"text": "b"}]}],
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "usage": {"input_tokens": 4, "output_tokens": 5},
        },
        ("ab", "max_output_tokens", 4, 5),
    ),
    (
        {"generated_text": "a", "details": {"finish_reason": "length", "generated_tokens": 5, "prompt_tokens": 4}},
        ("a", "length", 4, 5),
    ),
    (
        {"choices": [{"message": {"content": None, "tool_calls": []}, "finish_reason": "tool_calls"}]},
        (None, "tool_calls", None, None),
    ),
    ({}, (None, None, None, None)),
]


@pytest.mark.parametrize(("body", "cells"), BODIES)
def test_every_endpoint_has_its_text(body: dict[str, Any], cells: tuple[Any, ...]) -> None:
    record = {"response": {"status_code": 200, "body": body}, "error": None}
    assert cells_of(record) == (*cells, None, None)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"response": {"status_code": 404, "body": {"error": {"message": "gone"}}}, "error": None}, "gone"),
        ({"response": {"status_code": 404, "body": {"error": "gone", "error_type": "x"}}, "error": None}, "gone"),
        ({"response": None, "error": {"code": "batch_expired"}}, "batch_expired"),
        ({"response": None, "error": None}, "The server gave no reason."),
    ],
)
def test_a_line_without_an_answer_has_its_reason(record: dict[str, Any], reason: str) -> None:
    assert cells_of(record) == (None, None, None, None, reason, None)


def test_an_output_that_cannot_be_written_is_told_first(table: Input) -> None:
    with pytest.raises(BadInput, match=r"\.jsonl, \.csv, \.parquet"):
        check_target(Path("out.xlsx"), table.columns)
    with pytest.raises(BadInput, match="a column 'answer'"):
        check_target(Path("out.csv"), ["text", "answer"])
    check_target(Path("out.jsonl"), ["text", "answer"])
