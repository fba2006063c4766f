"""Terminal output: text from a hostile server or model can neither move the cursor nor change styles."""

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import IO, Any

import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, RedirectResponse, StreamingResponse
from hypothesis import given
from hypothesis import strategies as st

from tenora_client.cli import output
from tenora_client.cli.connection import tenant_key
from tenora_client.cli.demo_access import DemoAccess, TenantAccess
from tenora_client.transport import Api
from tests.support.live_server import live_server

HOSTILE = "\x1b[2J\x1b]0;title\x07[red]name[/red]\u202e\x9b31m\r\n"


@given(st.text())
def test_clean_leaves_one_visible_line(text):
    assert not any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in output.clean(text))


@given(st.text(alphabet=st.characters(exclude_categories=["C", "Z"])))
def test_clean_keeps_ordinary_text(text):
    assert output.clean(text) == text
    assert output.clean_prose(text) == text


@given(st.text())
def test_prose_keeps_lines_and_loses_controls(text):
    cleaned = output.clean_prose(text)
    assert cleaned.count("\n") == text.count("\n")
    assert not any(unicodedata.category(c) == "Cc" and c not in "\n\t" for c in cleaned)


def test_tables_and_records_show_markup_as_it_is(capsys):
    output.emit_table({"name": "name"}, [{"name": HOSTILE}], empty="")
    output.emit_record({"name": HOSTILE, "aliases": {HOSTILE: 1}, "list": [HOSTILE]}, ("name", "aliases", "list"))
    output.show_reasons([{"field": HOSTILE, "found": HOSTILE, "allowed": HOSTILE}])
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert "[red]name[/red]" in text
        assert not set("\x1b\x07\x9b\u202e\r") & set(text)


def test_a_pipe_gets_whole_rows(capsys):
    output.emit_table({"digest": "d", "more": "m"}, [{"d": "a" * 150, "m": "b" * 150}], empty="")
    assert "a" * 150 in capsys.readouterr().out


def stranger() -> FastAPI:
    """Build a server with responses that Tenora would never send."""
    app = FastAPI()

    @app.get("/admin/tenants")
    def tenants(limit: int):
        return {"data": [{"slug": HOSTILE, "name": HOSTILE}], "next_cursor": None}

    @app.get("/admin/tenants/{tenant}")
    def tenant(tenant: str):
        if tenant == "redirect":
            return RedirectResponse("/admin/tenants/b")
        return PlainTextResponse(HOSTILE, 500)

    @app.get("/admin/keys")
    def keys(limit: int):
        return ["no page"]

    @app.post("/v1/completions")
    def completions(body: dict):
        shapes: dict[str, list[Any]] = {
            "text": [{"choices": [{"text": HOSTILE}]}, {"choices": []}],
            "error": [{"choices": [{"text": "begun"}]}, {"error": {"message": HOSTILE}}],
            "noise": ["noise"],
            "shape": [{"choices": 7}],
        }
        lines = [f"data: {json.dumps(event)}\n\n" for event in shapes[body["prompt"]]] + ["data: [DONE]\n\n"]
        return StreamingResponse(iter(lines), media_type="text/event-stream")

    return app


@pytest.fixture(scope="module")
def stranger_url():
    with live_server(stranger()) as url:
        yield url


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["tenants", "list"], 0),
        (["tenants", "show", "a"], 1),
        (["tenants", "show", "redirect"], 1),
        (["keys", "list", "--platform"], 1),
        (["generate", "text"], 0),
        (["generate", "error"], 1),
        (["generate", "noise"], 1),
        (["generate", "shape"], 1),
    ],
)
def test_whatever_a_server_answers(alone, stranger_url, arguments, exit_code):
    result = alone(*arguments, exit_code=exit_code, TENORA_URL=stranger_url, TENORA_KEY="x")
    assert not set("\x1b\x07\x9b\r") & set(result.stdout + result.stderr)
    assert bool(result.stderr) == (exit_code != 0)


def test_what_was_streamed_before_an_error_stays(alone, stranger_url):
    result = alone("generate", "error", exit_code=1, TENORA_URL=stranger_url, TENORA_KEY="x")
    assert result.stdout == "begun\n"
    assert "[red]name[/red]" in result.stderr


class Measured:
    """File that records the largest single read."""

    def __init__(self, size: int) -> None:
        self.left, self.largest, self.size = size, 0, size

    def read(self, amount: int = -1) -> bytes:
        amount = self.left if amount < 0 else min(amount, self.left)
        self.left -= amount
        self.largest = max(self.largest, amount)
        return bytes(amount)

    def seek(self, offset: int, whence: int = 0) -> int:
        self.left = 0 if whence == 2 else self.size - offset
        return self.size - self.left

    def tell(self) -> int:
        return self.size - self.left


def test_uploads_are_read_in_chunks():
    app = FastAPI()

    @app.post("/upload")
    def upload():
        return {"read": "nothing"}

    file = Measured(8 * 2**20)
    with live_server(app) as url, Api(url, "x") as api:
        assert api.upload("/upload", {"file": file}) == {"read": "nothing"}
    assert 0 < file.largest <= 2**20


def test_whose_key_of_the_demo():
    tenants = {"a": TenantAccess(key="ka", adapters=("one",)), "b": TenantAccess(key="kb", adapters=("two",))}
    demo = DemoAccess(base_url="http://x", base_model="base", admin_key="admin", tenants=tenants)
    assert tenant_key(demo, "b", "one") == "kb"
    assert tenant_key(demo, "c", "one") is None
    models = ("two", "two@3", "two:canary", "other", "")
    assert [tenant_key(demo, None, model) for model in models] == ["kb"] * 3 + ["ka"] * 2


@pytest.mark.parametrize("command", [["completion", "bash"], ["profiles", "--json"], ["--version"]], ids=" ".join)
def test_a_full_disk_behind_a_redirection_is_one_sentence(tmp_path: Path, command: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = _run(command, tmp_path, full)
    assert done.returncode == 1
    assert done.stderr == (
        "error: Cannot write the output: No space left on device. Free space, then run the command again.\n"
    )


def test_a_reader_that_has_ended_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = _run(["--help"], tmp_path, pipe)
    assert done.returncode == 1
    assert done.stderr == ""


def _run(command: list[str], tmp_path: Path, stdout: IO[bytes]) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-B", "-m", "tenora_client", *command]
    variables = {"XDG_CONFIG_HOME": str(tmp_path), "TENORA_HOME": str(tmp_path)}
    return subprocess.run(
        program, env=variables, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
