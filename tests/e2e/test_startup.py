"""Start of a whole server: its summary, no known harmless warning, and JSON on every line where JSON is asked."""

import json
import os
import pty
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from app.demo.train import Demo
from app.observability.harmless import is_harmless
from app.observability.stderr_sink import read_line
from app.support.release import RELEASE
from tests.support.server import START_S, TENORA, environment, free_port, set_up, until
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow


def _read_all(descriptor: int, received: bytearray) -> None:
    """Read until the other end is closed, which a terminal reports as an error."""
    while True:
        try:
            data = os.read(descriptor, 65536)
        except OSError:
            return
        if not data:
            return
        received += data


def _started(home: Path, base: Path, *, terminal: bool, **settings: str) -> tuple[int, str]:
    """Start a server, wait for the end of its start, stop it, and return its status and standard error."""
    read, write = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        [TENORA, "serve", "--port", str(free_port())],
        env=environment(home, base, **SLOTS | {"VLLM_LOGGING_LEVEL": "INFO"} | settings),
        stderr=write,
        start_new_session=True,
    )
    os.close(write)
    received = bytearray()
    reader = threading.Thread(target=_read_all, args=(read, received))
    reader.start()
    try:
        until(lambda: b" is ready." in received or process.poll() is not None, START_S)
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
        reader.join(60)
        os.close(read)
    return status, received.decode().replace("\r\n", "\n")


def test_on_a_terminal_it_prints_six_lines_and_no_known_warning(trained_demo: Demo, tmp_path: Path) -> None:
    set_up(tmp_path, trained_demo.base)
    status, text = _started(tmp_path, trained_demo.base, terminal=True)
    assert status == -signal.SIGTERM, text[-3000:]
    assert text.count(" is ready.\n") == 1
    lines = text.splitlines()
    begin = lines.index(f"Tenora {RELEASE} is ready.")
    summary = dict(line.split(maxsplit=1) for line in lines[begin + 1 : begin + 6])
    assert summary.pop("addresses").startswith("http://127.0.0.1:")
    assert summary.pop("device").endswith("tokens of KV cache")
    assert summary == {
        "base": "demo, 2,048 tokens of context",
        "slots": "2 in the engine, for adapters of rank up to 16",
        "adapters": "none yet",
    }
    shown = [read_line(line) for line in lines]
    assert [line.raw for line in shown if is_harmless(line.source, line.text)] == []
    # Nothing is hidden by its level or its logger.
    assert any(line.source.startswith("vllm.") and line.level == "INFO" for line in shown)


def test_where_json_is_asked_every_line_is_json(trained_demo: Demo, tmp_path: Path) -> None:
    set_up(tmp_path, trained_demo.base)
    settings = {"TENORA_LOG__FORMAT": "json", "PYTHONWARNINGS": "default"}
    status, text = _started(tmp_path, trained_demo.base, terminal=False, **settings)
    assert status == -signal.SIGTERM, text[-3000:]
    records = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "logger", "message"} <= record.keys() for record in records)
    (summary,) = (record for record in records if record["logger"] == "app.cli.summary")
    assert (summary["version"], summary["base"], summary["slots"], summary["adapters"]) == (RELEASE, "demo", 2, 0)
    assert summary["kv_tokens"] > summary["context"] == 2048
    assert [record for record in records if is_harmless(record["logger"], record["message"])] == []
    # The engine's processes have written past Python's logging too.
    assert any("safetensors checkpoint shards" in record["message"] for record in records)


def test_a_failed_start_is_json_too(tmp_path: Path) -> None:
    variables = environment(tmp_path, tmp_path / "absent", TENORA_LOG__FORMAT="json")
    ended = subprocess.run(
        [TENORA, "serve", "--port", "0"], env=variables, capture_output=True, text=True, timeout=START_S, check=False
    )
    assert ended.returncode == 1
    (record,) = map(json.loads, ended.stderr.splitlines())
    assert record["level"] == "ERROR"
    assert "Run `tenora server init`" in record["message"]
