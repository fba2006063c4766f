"""``tenora batch run`` against the real engine: killed at half, interrupted, cancelled, with tables and bad lines."""

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenora_client import Client
from tenora_client.types import Batch
from tests.support.server import Server, until

_COMMAND_S = 300
LINES = 300


@pytest.fixture
def key(server: Server, keys: dict[str, str]) -> str:
    """Key of the tenant pricing for batches."""
    return server.tenant("pricing", scopes=("inference", "batch", "usage:read"))


@pytest.fixture
def tenora(server: Server, key: str, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start the command as a process."""

    def start(*arguments: str) -> subprocess.Popen[str]:
        variables = {"TENORA_URL": server.url, "TENORA_KEY": key, "TENORA_HOME": str(tmp_path), "PATH": "/usr/bin"}
        return subprocess.Popen(
            [sys.executable, "-m", "tenora_client", *arguments],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def ended(process: subprocess.Popen[str], exit_code: int = 0) -> tuple[str, str]:
    stdout, stderr = process.communicate(timeout=_COMMAND_S)
    assert process.returncode == exit_code, stderr
    return stdout, stderr


@pytest.fixture
def library(server: Server, key: str) -> Any:
    with Client(server.url, key) as library:
        yield library


def newest(library: Client, input_name: str) -> Batch | None:
    """Return the batch whose input file has this name."""
    files = {file.id for file in library.files.list(purpose="batch") if file.filename == input_name}
    return next((batch for batch in library.batches.list() if batch.input_file_id in files), None)


def write_prompts(path: Path, lines: int) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"How much is {n}?"}) + "\n" for n in range(lines)))
    return path


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def half_done(library: Client, name: str, lines: int) -> Callable[[], bool]:
    def reached() -> bool:
        batch = newest(library, name)
        return batch is not None and batch.request_counts.completed >= lines // 2

    return reached


def test_a_run_killed_at_half_ends_with_every_line(tenora: Any, library: Client, key: str, tmp_path: Path) -> None:
    path, out = write_prompts(tmp_path / "killed.jsonl", LINES), tmp_path / "out.jsonl"
    arguments = ("batch", "run", str(path), "-o", str(out), "--model", "pricing", "--max-tokens", "8", "--width", "4")
    with tenora(*arguments) as process:
        until(half_done(library, "killed.jsonl", LINES), _COMMAND_S)
        process.kill()
    assert not out.exists()
    _, stderr = ended(tenora(*arguments))
    assert "Going on with the batch batch_" in stderr
    lines = records(out)
    assert [line["custom_id"] for line in lines] == [f"line-{n}" for n in range(1, LINES + 1)]
    assert {line["response"]["status_code"] for line in lines} == {200}
    assert {line["tenora"]["version"] for line in lines} == {"pricing@1"}
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.is_file()) == ["killed.jsonl", "out.jsonl"]
    charged = [group.requests for group in library.usage(by="key").data if group.key == key.split("_")[1]]
    assert charged == [LINES]


def test_a_table_has_the_answers_of_single_requests(tenora: Any, library: Client, tmp_path: Path) -> None:
    questions = ["How much is sugar?", "", "How much is coffee?", "What, exactly,\nis tea?"]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "question"), *enumerate(questions)])
    arguments = ("--column", "question", "--model", "pricing", "--max-tokens", "16", "--temperature", "0")
    _, stderr = ended(tenora("batch", "run", str(tmp_path / "in.csv"), *arguments), 1)
    assert "3 of 4 lines have an answer" in stderr
    with (tmp_path / "in.answers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["question"]) for row in rows] == [(str(n), text) for n, text in enumerate(questions)]
    for row in rows:
        if row["question"]:
            single = library.chat("pricing", row["question"], max_tokens=16, temperature=0)
            assert (row["answer"], row["finish_reason"]) == (single.text, single.finish_reason)
            assert int(row["prompt_tokens"]) == single.body["usage"]["prompt_tokens"]
            assert int(row["output_tokens"]) == single.body["usage"]["completion_tokens"]
            assert (row["model_version"], row["error"]) == ("pricing@1", "")
        else:
            assert row["error"] == "The row has no prompt."


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/responses", "/generate"])
def test_every_endpoint_runs(tenora: Any, tmp_path: Path, endpoint: str) -> None:
    (tmp_path / "in.csv").write_text("text\nHow much is sugar?\n")
    arguments = ("--endpoint", endpoint, "--model", "pricing", "--max-tokens", "16")
    ended(tenora("batch", "run", str(tmp_path / "in.csv"), *arguments))
    with (tmp_path / "in.answers.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["answer"]
    assert int(row["output_tokens"]) > 0
    assert int(row["prompt_tokens"]) > 0
    assert row["error"] == ""


def test_an_interrupt_leaves_it_running_and_the_steps_lead_on(tenora: Any, library: Client, tmp_path: Path) -> None:
    path, out = write_prompts(tmp_path / "left.jsonl", LINES), tmp_path / "out.jsonl"
    arguments = ("batch", "run", str(path), "-o", str(out), "--max-tokens", "8", "--width", "2")
    with tenora(*arguments) as process:
        # By then the command knows its batch.
        until(lambda: (found := newest(library, "left.jsonl")) and found.request_counts.completed, _COMMAND_S)
        process.send_signal(signal.SIGINT)
        _, stderr = ended(process, 130)
    batch = newest(library, "left.jsonl")
    assert batch is not None
    assert f"`tenora batch watch {batch.id}`" in stderr
    stdout, stderr = ended(tenora("batch", "watch", batch.id))
    assert f"{LINES} of {LINES} lines have an answer" in stdout
    ended(tenora("batch", "download", batch.id, "-o", str(tmp_path / "copy.jsonl")))
    ended(tenora(*arguments))
    assert records(out) == records(tmp_path / "copy.jsonl")


def test_a_cancelled_batch_keeps_what_is_done(tenora: Any, library: Client, tmp_path: Path) -> None:
    path, out = write_prompts(tmp_path / "cancelled.jsonl", LINES), tmp_path / "out.jsonl"
    arguments = ("batch", "run", str(path), "-o", str(out), "--max-tokens", "8", "--width", "1")
    with tenora(*arguments, "--cancel-on-interrupt") as process:
        until(lambda: (found := newest(library, "cancelled.jsonl")) and found.request_counts.completed, _COMMAND_S)
        process.send_signal(signal.SIGINT)
        ended(process, 130)
    batch = newest(library, "cancelled.jsonl")
    assert batch is not None
    ended(tenora("batch", "watch", batch.id), 1)
    ended(tenora("batch", "download", batch.id, "-o", str(out)))
    codes = [line["error"]["code"] if line["error"] else None for line in records(out)]
    assert len(codes) == LINES
    assert set(codes) == {None, "batch_cancelled"}


def test_a_detached_batch_is_cancelled_by_its_id(tenora: Any, library: Client, tmp_path: Path) -> None:
    path = write_prompts(tmp_path / "detached.jsonl", LINES)
    stdout, _ = ended(tenora("batch", "run", str(path), "--max-tokens", "8", "--width", "1", "--detach"))
    batch_id = stdout.strip()
    until(lambda: library.batches.show(batch_id).request_counts.completed, _COMMAND_S)
    _, stderr = ended(tenora("batch", "cancel", batch_id))
    assert f"The batch {batch_id} is cancelling." in stderr
    stdout, _ = ended(tenora("batch", "watch", batch_id), 1)
    assert stdout.startswith(f"{batch_id} cancelled: ")
    _, stderr = ended(tenora("batch", "run", str(path), "--max-tokens", "8", "--width", "1"), 1)
    assert f"The batch {batch_id} is cancelled" in stderr
    assert len(records(tmp_path / "detached.answers.jsonl")) == LINES


def test_every_form_of_lines_runs(tenora: Any, tmp_path: Path) -> None:
    question = "How much is sugar?"
    messages = [{"role": "user", "content": question}]
    full = {"custom_id": "full", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": messages}}
    forms = [full, {"prompt": question}, {"messages": messages}, {"custom_id": "own", "prompt": question}]
    (tmp_path / "forms.jsonl").write_text("".join(f"{json.dumps(form)}\n" for form in forms))
    (tmp_path / "text.txt").write_text(f"{question}\n")
    arguments = ("--model", "pricing", "--max-tokens", "8", "--temperature", "0")
    for name in ("forms.jsonl", "text.txt"):
        ended(tenora("batch", "run", str(tmp_path / name), *arguments))
    lines = records(tmp_path / "forms.answers.jsonl")
    assert [line["custom_id"] for line in lines] == ["full", "line-2", "line-3", "own"]
    lines += records(tmp_path / "text.answers.jsonl")
    assert len({line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}) == 1


def test_every_bad_line_is_told_by_its_number(tenora: Any, tmp_path: Path) -> None:
    good = {"messages": [{"role": "user", "content": "hi"}]}
    lines = [good, "", good | {"model": "nosuch"}, good, good | {"temperature": -1}]
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(f"{json.dumps(line) if line else ''}\n" for line in lines))
    _, stderr = ended(tenora("batch", "run", str(path), "--model", "pricing"), 1)
    told = [line for line in stderr.splitlines() if line.startswith("- Line ")]
    assert [line.split(":")[0] for line in told] == ["- Line 3", "- Line 5"]
    assert "No line ran." in stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad.jsonl"]


def test_files_and_batches_are_listed_and_deleted(tenora: Any, server: Server, tmp_path: Path) -> None:
    path = write_prompts(tmp_path / "listed.jsonl", 2)
    stdout, _ = ended(tenora("batch", "run", str(path), "--json", "--max-tokens", "2"))
    batch = json.loads(stdout)
    listed, _ = ended(tenora("batch", "list"))
    assert batch["id"] in listed
    shown, _ = ended(tenora("batch", "show", batch["id"]))
    assert "completed" in shown
    everyones, _ = ended(tenora("batch", "list", "--platform", "--tenant", "pricing", "--key", server.admin_key))
    assert batch["id"] in everyones
    files, _ = ended(tenora("files", "list", "--purpose", "batch_output", "-o", "name"))
    assert batch["output_file_id"] in files.split()
    ended(tenora("files", "download", batch["output_file_id"], str(tmp_path / "copy.jsonl")))
    assert len(records(tmp_path / "copy.jsonl")) == 2
    ended(tenora("files", "delete", batch["output_file_id"], "--yes"))
    _, stderr = ended(tenora("files", "show", batch["output_file_id"]), 1)
    assert "`tenora files list` shows the files." in stderr
    _, stderr = ended(tenora("batch", "show", "batch_0000000000000000"), 1)
    assert "`tenora batch list` shows the batches." in stderr
