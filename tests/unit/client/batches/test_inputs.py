"""Inputs of a batch: the requests of each form, and the sentence for each mistake."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_client.batches.inputs import Input, write_requests
from tenora_client.batches.lines import CHAT, COMPLETIONS, GENERATE, RESPONSES, BadInput

FULL = {"custom_id": "a", "method": "POST", "url": COMPLETIONS, "body": {"prompt": "hi", "max_tokens": 7}}


def requests_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    file = io.BytesIO()
    write_requests(Input.open(path, **options), file)
    return [json.loads(line) for line in file.getvalue().splitlines()]


def write(folder: Path, name: str, *lines: Any) -> Path:
    path = folder / name
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_a_full_line_stays_and_names_the_endpoint(tmp_path: Path) -> None:
    assert requests_of(write(tmp_path, "in.jsonl", FULL)) == [FULL]


def test_options_fill_what_a_line_leaves_out(tmp_path: Path) -> None:
    path = write(tmp_path, "in.jsonl", FULL, FULL | {"custom_id": "b", "body": {"prompt": "x"}})
    first, second = requests_of(path, max_tokens=3, temperature=0.0)
    assert first["body"] == {"prompt": "hi", "max_tokens": 7, "temperature": 0.0}
    assert second["body"] == {"prompt": "x", "max_tokens": 3, "temperature": 0.0}


def test_another_name_for_the_most_tokens_counts_too(tmp_path: Path) -> None:
    path = write(tmp_path, "in.jsonl", {"prompt": "x", "max_completion_tokens": 2})
    assert requests_of(path, max_tokens=3)[0]["body"]["max_completion_tokens"] == 2
    assert "max_tokens" not in requests_of(path, max_tokens=3)[0]["body"]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}], "seed": 1, "max_tokens": 3}),
        (COMPLETIONS, {"prompt": "hi", "seed": 1, "max_tokens": 3}),
        (RESPONSES, {"input": "hi", "seed": 1, "max_output_tokens": 3}),
        (GENERATE, {"inputs": "hi", "seed": 1, "parameters": {"details": True, "max_new_tokens": 3}}),
    ],
)
def test_a_prompt_fits_every_endpoint(tmp_path: Path, endpoint: str, body: dict[str, Any]) -> None:
    path = write(tmp_path, "in.jsonl", {"prompt": "hi", "seed": 1, "custom_id": "mine"})
    assert requests_of(path, endpoint=endpoint, max_tokens=3) == [
        {"custom_id": "mine", "method": "POST", "url": endpoint, "body": body}
    ]


def test_messages_fit_chats_and_responses(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    path = write(tmp_path, "in.jsonl", {"messages": messages})
    assert requests_of(path)[0]["body"] == {"messages": messages}
    assert requests_of(path, endpoint=RESPONSES)[0]["body"] == {"input": messages}


def test_an_id_has_the_number_of_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "in.jsonl", {"prompt": "a"}, "", {"prompt": "b"})
    assert [request["custom_id"] for request in requests_of(path)] == ["line-1", "line-3"]


def test_text_has_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes("\ufeffWie viel?\r\n\r\n  zwei \n".encode())
    assert [request["body"]["messages"][0]["content"] for request in requests_of(path)] == ["Wie viel?", "  zwei "]


def test_a_table_takes_the_column_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, "in.csv", "id,question", '1,"How, much?"', '2,"two\nlines"', "3,")
    file = io.BytesIO()
    assert write_requests(Input.open(path, column="question"), file) == (2, 1)
    rows = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [(row["custom_id"], row["body"]["messages"][0]["content"]) for row in rows] == [
        ("row-1", "How, much?"),
        ("row-2", "two\nlines"),
    ]


@pytest.mark.parametrize(("header", "column"), [("id,text", "text"), ("prompt,id", "prompt"), ("question", "question")])
def test_a_usual_column_need_not_be_named(tmp_path: Path, header: str, column: str) -> None:
    assert Input.open(write(tmp_path, "in.csv", header, "a,b")).column == column


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1), st.integers())))
def test_any_text_of_a_table_arrives(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int]]) -> None:
    path = tmp_path_factory.mktemp("table") / "in.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "n"), *rows])
    items = list(Input.open(path).items())
    assert [tuple(item.cells) for item in items] == [(text, str(number)) for text, number in rows]
    sent = [json.loads(item.request)["body"]["messages"][0]["content"] for item in items if item.request]
    assert sent == [text for text, _ in rows if text.strip()]


def test_a_long_cell_is_read(tmp_path: Path) -> None:
    long = "a" * 300_000
    assert requests_of(write(tmp_path, "in.csv", "text,n", f"{long},1"))[0]["body"]["messages"][0]["content"] == long
    assert csv.field_size_limit() < 300_000


MISTAKES = [
    ("in.jsonl", ['{"prompt": "a"}', "{oops"], {}, "Line 2 of in.jsonl is not valid JSON"),
    ("in.jsonl", ["[1]"], {}, "Line 1 is not a JSON object"),
    ("in.jsonl", ["[" * 100_000], {}, "Line 1 of in.jsonl is"),
    ("in.jsonl", [{"text": "a"}], {}, "Line 1 has neither prompt nor messages nor body"),
    ("in.jsonl", [{"prompt": 7}], {}, "Line 1 has a prompt that is not a text"),
    ("in.jsonl", [{"prompt": "a", "custom_id": 7}], {}, "Line 1 has a custom_id"),
    ("in.jsonl", [{"prompt": "a", "custom_id": "x" * 513}], {}, "Line 1 has a custom_id"),
    ("in.jsonl", [{"prompt": "a", "custom_id": "x"}] * 2, {}, "Line 2 has the custom_id 'x' of an earlier line"),
    ("in.jsonl", [{"messages": []}], {"endpoint": COMPLETIONS}, "Line 1 has messages, which /v1/completions does not"),
    ("in.jsonl", [FULL | {"url": "/v1/embeddings"}], {}, "Line 1 of in.jsonl has the url '/v1/embeddings'"),
    ("in.jsonl", [FULL, FULL | {"custom_id": "b", "url": CHAT}], {}, "Line 2 has the url '/v1/chat/completions'"),
    ("in.jsonl", [FULL | {"method": "GET"}], {}, "Line 1 has the method 'GET'"),
    ("in.jsonl", [FULL | {"body": "hi"}], {}, "Line 1 has a body that is not a JSON object"),
    ("in.jsonl", [FULL | {"model": "x"}], {}, "Line 1 has the field 'model' next to its body"),
    ("in.jsonl", ['{"prompt": "\\ud83d"}'], {}, "Line 1 of in.jsonl is not valid JSON"),
    ("in.jsonl", [""], {}, "in.jsonl has no prompts"),
    ("in.jsonl", [{"prompt": "a"}], {"column": "text"}, "in.jsonl has no columns"),
    ("in.txt", ["a\0b"], {}, "Line 1 of in.txt is not text"),
    ("in.csv", [""], {}, "in.csv has no header"),
    ("in.csv", ["a,a"], {}, "in.csv has two columns with the name 'a'"),
    (
        "in.csv",
        ["id,q", "1,2"],
        {},
        "Name the column of in.csv that holds the prompts: --column. Its",
    ),
    ("in.csv", ["id,text", "1,2"], {"column": "txt"}, "has no column 'txt'. Did you mean 'text'?"),
    ("in.csv", ["id,text", "1,2", "1"], {}, "Row 2 of in.csv has 1 cells, and the header has 2"),
    ("in.csv", ["id,text", '1,"a"b'], {}, "Line 2 of in.csv is not valid CSV"),
    ("in.csv", ["text", '""'], {}, "in.csv has no prompts"),
]


@pytest.mark.parametrize(("name", "lines", "options", "sentence"), MISTAKES)
def test_a_mistake_gets_one_sentence_with_its_line(
    tmp_path: Path, name: str, lines: list[Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInput) as error:
        requests_of(write(tmp_path, name, *lines), **options)
    assert sentence in str(error.value)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("in.jsonl", b'{"prompt": "a"}\n{"prompt": "\xe4"}\n', 2),
        ("in.txt", b"a\nb\n\xe4\n", 3),
        ("in.csv", b"text\n" + b"a\n" * 50_000 + b"\xe4\n", 50_002),
    ],
)
def test_another_encoding_is_told_with_the_line(tmp_path: Path, name: str, content: bytes, line: int) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=f"Line {line} of {name} is not UTF-8"):
        requests_of(tmp_path / name)
