"""``tenora chat`` against a live server whose answers tell what the model was sent."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tests.support.live_server import live_server


def echo() -> FastAPI:
    """Build a server that answers with the model, the count of messages and the last message."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    def chat(body: dict) -> Response:
        if body["model"] == "none":
            return JSONResponse({"error": {"message": "There is no model 'none'.", "param": "model"}}, 404)
        messages = body["messages"]
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        pieces = [body["model"] or "base", f" {len(messages)} {system}\n", messages[-1]["content"]]
        events = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
        return StreamingResponse(iter(lines), media_type="text/event-stream")

    return app


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server(echo()) as address:
        yield address


def run(url: str, tmp_path: Path, arguments: list[str], text: str) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-B", "-m", "tenora_client", "chat", *arguments]
    environment = {"TENORA_URL": url, "TENORA_KEY": "x", "XDG_CONFIG_HOME": str(tmp_path)}
    return subprocess.run(
        program, input=text, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )


def test_each_piped_line_gets_one_line(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path, ["quotes"], "one\n\ntwo\n")
    assert done.stdout == "quotes 1  one\nquotes 3  two\n"
    assert done.returncode == 0


def test_two_models_have_a_history_each(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path, ["a", "--compare", "b", "--system", "S"], "one\ntwo\n")
    assert done.stdout == "a 2 S one\tb 2 S one\na 4 S two\tb 4 S two\n"


def test_commands_change_the_chat(url: str, tmp_path: Path) -> None:
    text = "one\n/reset\ntwo\n/system S\nthree\n/model other\nfour\n/quit\nfive\n"
    done = run(url, tmp_path, ["quotes"], text)
    assert done.stdout.splitlines() == ["quotes 1  one", "quotes 1  two", "quotes 2 S three", "other 2 S four"]
    assert "Did you mean '/reset'?" in run(url, tmp_path, [], "/rest\n").stderr


def test_a_refusal_ends_a_pipe_with_1(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path, ["none"], "one\ntwo\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: There is no model 'none'")


@pytest.mark.parametrize("columns", ["100", "30"])
def test_a_terminal_is_a_dialogue(url: str, tmp_path: Path, columns: str) -> None:
    """A refusal does not end it. Two answers stand side by side where there is room."""
    variables = {"TENORA_URL": url, "TENORA_KEY": "x", "XDG_CONFIG_HOME": str(tmp_path), "COLUMNS": columns}
    program = [sys.executable, "-B", "-m", "tenora_client", "chat", "left", "--compare", "right"]
    parent, child = pty.openpty()
    running = subprocess.Popen(
        program, stdin=child, stdout=child, stderr=child, env={"TERM": "xterm", "PATH": os.environ["PATH"], **variables}
    )
    os.close(child)
    os.write(parent, b"hello\n/model none\nhello\n/quit\n")
    shown = b""
    try:
        while piece := os.read(parent, 65536):
            shown += piece
    except OSError:
        pass  # Linux ends a terminal without writers with an error.
    os.close(parent)
    assert running.wait(timeout=60) == 0
    text = shown.decode()
    assert "left 1" in text
    assert "right 1" in text
    assert ("╭" in text) is (columns == "100")
    assert "There is no model 'none'" in text
