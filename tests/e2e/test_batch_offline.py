"""``tenora batch run --offline``: the engine of this machine without a server, killed at half and run again."""

import json
import os
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.demo.train import Demo
from app.support.home import exclusive
from tests.support.server import START_S, TENORA, environment, processes_of, running, until
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow

LINES = 500
_COMMAND_S = 500


@pytest.fixture(scope="module")
def home(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HOME with a tenant and its adapter, whose server has ended."""
    home = tmp_path_factory.mktemp("offline")
    with running(home, trained_demo.base, **SLOTS) as server:
        server.tenant("pricing")
        assert server.publish("pricing", "pricing", trained_demo.adapters["pricing"]).status_code == 201
    return home


def start(home: Path, base: Path, *arguments: str) -> subprocess.Popen[str]:
    variables = environment(home, base, **SLOTS)
    return subprocess.Popen(
        [TENORA, "batch", "run", "--offline", *arguments],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str], exit_code: int = 0) -> tuple[str, str]:
    stdout, stderr = process.communicate(timeout=_COMMAND_S)
    assert process.returncode == exit_code, stderr
    return stdout, stderr


def only_messages(stderr: str) -> bool:
    """Return whether stderr has the command's messages and nothing that a library logs."""
    ours = ("Starting the engine", "Lines to run", "Going on with", "Cancelling the batch", "batch_")
    rest = [line for line in stderr.splitlines() if not line.startswith(ours)]
    return all(line.startswith("error: ") or "lines have an answer" in line for line in rest)


def one(home: Path, query: str) -> int:
    """Return the number that a query of the registry gives."""
    database = sqlite3.connect(f"file:{home / 'tenora.db'}?mode=ro", uri=True, timeout=10)
    try:
        return int(database.execute(query).fetchone()[0] or 0)
    finally:
        database.close()


def answered(home: Path) -> int:
    return one(home, "select sum(completed) from batches")


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.long
def test_a_run_killed_at_half_ends_with_every_line(home: Path, trained_demo: Demo, tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"How much is {n}?"}) + "\n" for n in range(LINES)))
    arguments = (str(path), "-o", str(out), "--model", "pricing", "--max-tokens", "8", "--width", "8")
    with start(home, trained_demo.base, *arguments) as process:
        until(lambda: answered(home) >= LINES // 2 or process.poll() is not None, _COMMAND_S)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    until(lambda: not processes_of(home), START_S)
    assert out.with_name("out.jsonl.batch").exists()

    _, stderr = ended(start(home, trained_demo.base, *arguments))
    assert "Going on with the batch batch_" in stderr
    assert only_messages(stderr), stderr
    lines = records(out)
    assert [line["custom_id"] for line in lines] == [f"line-{n}" for n in range(1, LINES + 1)]
    assert {line["tenora"]["version"] for line in lines} == {"pricing@1"}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    tokens = sum(line["response"]["body"]["usage"]["completion_tokens"] for line in lines)
    assert one(home, "select sum(requests) from usage_hours") == LINES
    assert one(home, "select sum(output_tokens) from usage_hours") == tokens
    assert not processes_of(home)
    assert "How much is" not in (home / "offline.log").read_text()


@pytest.mark.long
def test_an_interrupt_says_how_to_go_on(home: Path, trained_demo: Demo, tmp_path: Path) -> None:
    path, out, before = tmp_path / "in.txt", tmp_path / "out.csv", answered(home)
    path.write_text("How much is tea?\n" * 200)
    arguments = (str(path), "-o", str(out), "--model", "pricing", "--max-tokens", "8", "--width", "2")
    with start(home, trained_demo.base, *arguments) as process:
        until(lambda: answered(home) > before or process.poll() is not None, _COMMAND_S)
        process.send_signal(signal.SIGINT)
        _, stderr = ended(process, 130)
    assert "Interrupted. Run the same command again to go on with the batch batch_" in stderr
    assert not processes_of(home)
    ended(start(home, trained_demo.base, *arguments))
    assert len(out.read_text().splitlines()) == 201


def test_an_interrupt_cancels_on_demand(home: Path, trained_demo: Demo, tmp_path: Path) -> None:
    path, out, before = tmp_path / "in.jsonl", tmp_path / "out.jsonl", answered(home)
    path.write_text('{"prompt": "How much is tea?"}\n' * LINES)
    arguments = (str(path), "-o", str(out), "--model", "pricing", "--width", "1", "--cancel-on-interrupt")
    with start(home, trained_demo.base, *arguments) as process:
        until(lambda: answered(home) > before or process.poll() is not None, _COMMAND_S)
        process.send_signal(signal.SIGINT)
        _, stderr = ended(process, 1)
    assert "Cancelling the batch batch_" in stderr
    assert only_messages(stderr), stderr
    lines = records(out)
    assert [line["custom_id"] for line in lines] == [f"line-{n}" for n in range(1, LINES + 1)]
    codes = [line["error"] and line["error"]["code"] for line in lines]
    assert set(codes) == {None, "batch_cancelled"}
    assert codes.count(None) == answered(home) - before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    assert not processes_of(home)


def test_a_home_in_use_is_refused(home: Path, trained_demo: Demo, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("hi\n")
    with exclusive(home):
        _, stderr = ended(start(home, trained_demo.base, str(tmp_path / "in.txt")), 1)
    assert f"{home} is in use by pid {os.getpid()}" in stderr
    assert "Traceback" not in stderr


def test_a_missing_home_is_refused(trained_demo: Demo, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("hi\n")
    _, stderr = ended(start(tmp_path / "absent", trained_demo.base, str(tmp_path / "in.txt")), 2)
    assert "does not exist. Set TENORA_HOME" in stderr
    assert not (tmp_path / "absent").exists()
