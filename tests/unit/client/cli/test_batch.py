"""``tenora batch`` as scripts call it, against a small server whose batches stand still on demand."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.batch_server import BatchServer, batch_server
from tests.support.cli import Tenora


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with batch_server() as server:
        yield server


@pytest.fixture
def batch(server: BatchServer, tmp_path: Path, clean_environment: None) -> Tenora:
    """The command with a key for the small server."""
    environment = {"TENORA_URL": server.url, "TENORA_KEY": "tnr_key", "TENORA_HOME": str(tmp_path / "home")}
    return Tenora(environment | {"COLUMNS": "200"})


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"prompt": "question {n}"}}\n' for n in range(20)))
    return path


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def left(folder: Path) -> list[str]:
    """Names of the files that a run left next to its input and output."""
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def command(server: BatchServer, *arguments: str) -> subprocess.Popen[str]:
    """Start the command in a process."""
    environment = {**os.environ, "TENORA_URL": server.url, "TENORA_KEY": "tnr_key", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tenora_client", "batch", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_run_writes_the_answers_in_order(batch: Tenora, server: BatchServer, prompts: Path) -> None:
    out = prompts.with_name("out.jsonl")
    result = batch("batch", "run", str(prompts), "-o", str(out), "--model", "pricing", "--metadata", "run=17")
    assert result.stdout == f"{out}\n"
    assert "20 of 20 lines have an answer, 40 output tokens" in result.stderr
    assert [record["custom_id"] for record in records(out)] == [f"line-{n}" for n in range(1, 21)]
    (created,) = server.batches.values()
    assert created["tenora"]["model"] == "pricing"
    assert created["metadata"] == {"run": "17"}
    assert created["completion_window"] == "24h"
    assert left(prompts.parent) == ["in.jsonl", "out.jsonl"]


def test_a_table_comes_out_scored(batch: Tenora, tmp_path: Path, server: BatchServer) -> None:
    (tmp_path / "in.csv").write_text("id,question\n1,How much?\n2,\n3,Why?\n")
    server.error_of = lambda custom_id: "too hot" if custom_id == "row-3" else None
    result = batch("batch", "run", str(tmp_path / "in.csv"), "--column", "question", exit_code=1)
    assert "Rows without a prompt: 1." in result.stderr
    assert "Lines without an answer: 2." in result.stderr
    with (tmp_path / "in.answers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["question"], row["finish_reason"], row["error"]) for row in rows] == [
        ("1", "How much?", "stop", ""),
        ("2", "", "", "The row has no prompt."),
        ("3", "Why?", "", "too hot"),
    ]
    assert left(tmp_path) == ["in.answers.csv", "in.csv"]


def test_a_run_killed_at_half_goes_on(batch: Tenora, server: BatchServer, prompts: Path) -> None:
    server.limit = 10
    out = prompts.with_name("out.jsonl")
    arguments = ("run", str(prompts), "-o", str(out), "--model", "pricing")
    with command(server, *arguments) as process:
        assert server.polled.wait(60)
        process.kill()
    assert left(prompts.parent) == ["in.jsonl", "out.jsonl.batch"]
    server.limit = float("inf")
    result = batch("batch", *arguments)
    assert "Going on with the batch batch_" in result.stderr
    assert [record["custom_id"] for record in records(out)] == [f"line-{n}" for n in range(1, 21)]
    assert (server.created(), server.created("/v1/files")) == (1, 1)
    assert left(prompts.parent) == ["in.jsonl", "out.jsonl"]


def test_a_batch_that_was_created_before_the_kill_is_found(batch: Tenora, server: BatchServer, prompts: Path) -> None:
    out = prompts.with_name("out.jsonl")
    batch("batch", "run", str(prompts), "-o", str(out), "--detach")
    state = json.loads(out.with_name("out.jsonl.batch").read_text())
    out.with_name("out.jsonl.batch").write_text(json.dumps(state | {"batch_id": None}))
    batch("batch", "run", str(prompts), "-o", str(out))
    assert server.created() == 1
    assert len(records(out)) == 20


def test_another_run_does_not_take_over(batch: Tenora, server: BatchServer, prompts: Path) -> None:
    server.limit = 10
    out = prompts.with_name("out.jsonl")
    shown = batch("batch", "run", str(prompts), "-o", str(out), "--detach")
    assert shown.stdout.startswith("batch_")
    result = batch("batch", "run", str(prompts), "-o", str(out), "--max-tokens", "7", exit_code=2)
    assert "a run with --max-tokens none, not 7. Give another -o, or remove" in result.stderr
    prompts.write_text('{"prompt": "other"}\n')
    result = batch("batch", "run", str(prompts), "-o", str(out), exit_code=2)
    assert "a run whose input was another one: the batch batch_" in result.stderr
    assert server.created() == 1


def test_an_output_is_never_overwritten(batch: Tenora, server: BatchServer, prompts: Path) -> None:
    out = prompts.with_name("out.jsonl")
    out.write_text("mine")
    result = batch("batch", "run", str(prompts), "-o", str(out), exit_code=2)
    assert "exists already. Remove it, or give another -o." in result.stderr
    result = batch("batch", "run", str(prompts), "-o", str(prompts), exit_code=2)
    assert "is the input" in result.stderr
    assert (out.read_text(), server.requests) == ("mine", [])


def test_an_interrupt_leaves_the_batch_running(batch: Tenora, server: BatchServer, prompts: Path) -> None:
    server.limit = 10
    out = prompts.with_name("out.jsonl")
    with command(server, "run", str(prompts), "-o", str(out)) as process:
        assert server.polled.wait(60)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    (created,) = server.batches
    assert (process.returncode, stdout) == (130, "")
    assert f"`tenora batch watch {created}`" in stderr
    assert f"`tenora batch run {prompts} -o {out}` waits for it" in stderr
    assert server.batches[created]["status"] == "in_progress"


def test_an_interrupt_cancels_on_demand(batch: Tenora, server: BatchServer, prompts: Path) -> None:
    server.limit = 10
    out = prompts.with_name("out.jsonl")
    with command(server, "run", str(prompts), "-o", str(out), "--cancel-on-interrupt") as process:
        assert server.polled.wait(60)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    (created,) = server.batches
    assert process.returncode == 130
    assert server.batches[created]["status"] == "cancelling"
    assert left(prompts.parent) == ["in.jsonl"]
    assert f"`tenora batch download {created} -o {out}`" in stderr
    result = batch("batch", "watch", created, exit_code=1)
    assert f"{created} cancelled: 10 of 20 lines" in result.stdout
    batch("batch", "download", created, "-o", str(out))
    assert len(records(out)) == 10


def test_a_server_that_restarts_is_waited_for(batch: Tenora, server: BatchServer, prompts: Path) -> None:
    server.limit = 10
    out = prompts.with_name("out.jsonl")
    batch("batch", "run", str(prompts), "-o", str(out), "--detach")
    server.limit, server.fail_next = float("inf"), 2
    result = batch("batch", "run", str(prompts), "-o", str(out))
    assert "The server cannot answer now (503). Trying again." in result.stderr
    assert len(records(out)) == 20


def test_problems_have_the_numbers_of_the_input(batch: Tenora, server: BatchServer, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a\n\nb\n")
    server.problems = [
        {"code": "context_length_exceeded", "line": 2, "message": "The prompt is too long.", "param": None}
    ]
    result = batch("batch", "run", str(path), exit_code=1)
    assert "- Line 3: The prompt is too long." in result.stderr
    assert "No line ran. Correct the input" in result.stderr
    assert left(tmp_path) == ["in.txt"]


def test_a_refused_batch_leaves_nothing_behind(batch: Tenora, server: BatchServer, prompts: Path) -> None:
    server.fail_next = 0
    detached = batch("batch", "run", str(prompts), "--detach")
    assert detached.exit_code == 0
    state = prompts.with_name("in.answers.jsonl.batch")
    saved = json.loads(state.read_text())
    state.write_text(json.dumps(saved | {"batch_id": None, "file_id": "file-gone"}))
    result = batch("batch", "run", str(prompts), exit_code=1)
    assert "`tenora files list` shows the files." in result.stderr
    assert left(prompts.parent) == ["in.jsonl"]


def test_a_bad_line_is_told_before_anything_is_sent(batch: Tenora, server: BatchServer, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n{"promt": "b"}\n')
    result = batch("batch", "run", str(tmp_path / "in.jsonl"), exit_code=2)
    assert "Line 2 has neither prompt nor messages nor body." in result.stderr
    assert server.requests == []
    assert left(tmp_path) == ["in.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--endpoint", "/v1/chat/completion"], "Did you mean '/v1/chat/completions'?"),
        (["--window", "24"], "24 has no unit"),
        (["--metadata", "run"], "Write NAME=VALUE."),
        (["-o", "out.xlsx"], "The output can be .jsonl, .csv, .parquet"),
        (["-o", "/nonexistent/out.jsonl"], "The folder /nonexistent does not exist"),
        (["--column", "text"], "in.jsonl has no columns"),
        (["--offline", "--detach"], "--detach needs a server"),
    ],
)
def test_wrong_usage_is_one_sentence(batch: Tenora, prompts: Path, arguments: list[str], words: str) -> None:
    assert words in batch("batch", "run", str(prompts), *arguments, exit_code=2).stderr


def test_a_missing_input_is_one_sentence(batch: Tenora, tmp_path: Path) -> None:
    result = batch("batch", "run", str(tmp_path / "absent.jsonl"), exit_code=2)
    assert "absent.jsonl: No such file or directory" in result.stderr


def test_batches_are_listed_and_shown(batch: Tenora, server: BatchServer, prompts: Path) -> None:
    batch("batch", "run", str(prompts), "--model", "pricing")
    (created,) = server.batches
    rows = batch("batch", "list").stdout.splitlines()
    assert rows[0].split() == ["id", "state", "lines", "done", "failed", "endpoint", "created", "expires"]
    assert rows[1].split()[:6] == [created, "completed", "20", "20", "0", "/v1/chat/completions"]
    assert batch("batch", "list", "-o", "name").stdout == f"{created}\n"
    shown = batch("batch", "show", created)
    assert re.search(r"^model +pricing$", shown.stdout, re.MULTILINE)
    assert f"`tenora batch download {created} -o FILE`" in shown.stderr
    assert batch.json("batch", "show", created)["id"] == created
    result = batch("batch", "show", "batch_none", exit_code=1)
    assert "`tenora batch list` shows the batches." in result.stderr


def test_a_batch_that_runs_cannot_be_downloaded(batch: Tenora, server: BatchServer, prompts: Path) -> None:
    server.limit = 10
    created = batch("batch", "run", str(prompts), "--detach").stdout.strip()
    result = batch("batch", "download", created, "-o", str(prompts.with_name("x.csv")), exit_code=1)
    assert f"`tenora batch watch {created}` waits for its end." in result.stderr
    assert "is cancelling" in batch("batch", "cancel", created).stderr


def test_a_json_result_has_the_batch_and_the_output(batch: Tenora, prompts: Path) -> None:
    result = batch.json("batch", "run", str(prompts))
    assert (result["status"], result["lines"], result["lines_failed"]) == ("completed", 20, 0)
    assert result["output"] == str(prompts.with_name("in.answers.jsonl"))


def test_files_go_up_and_down(batch: Tenora, server: BatchServer, prompts: Path) -> None:
    uploaded = batch("files", "upload", str(prompts))
    assert uploaded.stderr == ""
    file_id = uploaded.stdout.strip()
    assert server.files[file_id][1] == prompts.read_bytes()
    assert batch("files", "list").stdout.splitlines()[1].split()[:3] == [file_id, "in.jsonl", "batch"]
    assert batch.json("files", "show", file_id)["bytes"] == prompts.stat().st_size
    copy = prompts.with_name("copy.jsonl")
    batch("files", "download", file_id, str(copy))
    assert copy.read_bytes() == prompts.read_bytes()
    assert "exists already" in batch("files", "download", file_id, str(copy), exit_code=2).stderr
    assert "Add --yes" in batch("files", "delete", file_id, exit_code=1).stderr
    batch("files", "delete", file_id, "--yes")
    assert not server.files
    assert "`tenora files list`" in batch("files", "show", file_id, exit_code=1).stderr


def test_parquet_without_pyarrow_says_how_to_install_it(
    batch: Tenora, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    result = batch("batch", "run", str(tmp_path / "in.parquet"), exit_code=2)
    assert "Install it: pip install 'tenora-client[parquet]'." in result.stderr
    (tmp_path / "in.csv").write_text("text\na\n")
    result = batch("batch", "run", str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.parquet"), exit_code=2)
    assert "Install it: pip install 'tenora-client[parquet]'." in result.stderr
