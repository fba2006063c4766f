"""Standard error of a server and all its children: whole lines, JSON where asked, without known harmless warnings."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.observability.harmless import HARMLESS, is_harmless
from app.observability.stderr_sink import FLUSH, Sink

RECORD = '{"time":"2026-11-29T02:08:00.536Z","level":"WARNING","logger":"app.part","message":"so"}'
HIDDEN_RECORD = (
    '{"time":"2026-11-29T02:08:00.536Z","level":"WARNING","logger":"vllm.config.vllm",'
    '"message":"Model Runner V2 requires Triton; using the V1 model runner instead."}'
)
HIDDEN_TEXT = (
    "2026-11-29T02:08:00.536Z WARNING vllm.config.vllm: Model Runner V2 requires Triton; using the V1 model runner "
    "instead. request_id=7 tenant=retail"
)
HIDDEN_TORCH = (
    "W1129 02:08:19.362000 9620 .venv/lib/torch/_library/triton.py:53] Triton not available, find_triton_kernels = []"
)
HIDDEN_CPP = (
    "[W1129 02:08:06.089617416 utils.cpp:68] Warning: NUMA binding: Using MEMBIND policy for memory allocation on the "
    "NUMA nodes (0). Memory allocations will be strictly bound to these NUMA nodes. (function init_cpu_memory_env)"
)
HIDDEN_PYTHON = (
    "/x/vllm/triton_utils/dispatcher.py:138: FutureWarning: `torch.distributed.reduce_op` is deprecated, please use "
    "`torch.distributed.ReduceOp` instead\n  if hasattr(value, '__dict__'):"
)
HIDDEN = (HIDDEN_RECORD, HIDDEN_TEXT, HIDDEN_TORCH, HIDDEN_CPP, HIDDEN_PYTHON)

#: The redirect in a separate process, since it replaces the descriptor 2 of its process.
SCRIPT = """
import os, signal, subprocess, sys
from app.observability.stderr_redirect import redirected_stderr
with redirected_stderr(sys.argv[1]):
    {block}
sys.stderr.write("after\\n")
"""


def sunk(text: str, *, as_json: bool = True) -> list[str]:
    sink = Sink(as_json=as_json)
    return (sink.feed(text.encode()) + sink.end()).decode().splitlines()


def redirected(form: str, block: str) -> tuple[int, list[str]]:
    """Run a block under the redirect in a new process. Returns its status and the lines of its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(block=block), form], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr.splitlines()


def messages(lines: Sequence[str]) -> list[str]:
    return [json.loads(line)["message"] for line in lines]


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("hidden", HIDDEN, ids=["record", "text", "torch", "C++", "Python"])
def test_known_warnings_are_hidden_in_every_form(hidden: str, as_json: bool) -> None:
    assert sunk(f"{RECORD}\n{hidden}\n{RECORD}\n", as_json=as_json) == [RECORD, RECORD]


@pytest.mark.parametrize(
    ("text", "level", "logger"),
    [
        ("Loading shards: 100% Completed", "INFO", "stderr"),
        ("error: The server could not start.", "ERROR", "stderr"),
        ("Fatal Python error: Segmentation fault", "ERROR", "stderr"),
        ("Traceback (most recent call last):", "ERROR", "stderr"),
        ("terminate called after throwing an instance of 'c10::Error'", "ERROR", "stderr"),
        ("W1129 02:08:19.362000 9620 torch/_x.py:53] unknown", "WARNING", "torch/_x.py"),
        ("[E1129 02:08:06.089617416 utils.cpp:68] unknown", "ERROR", "utils.cpp"),
        ("/x/y.py:7: DeprecationWarning: old", "WARNING", "DeprecationWarning"),
        ("\x1b[31mred \udcff \x00", "INFO", "stderr"),
        ('{"time":"unfinished', "INFO", "stderr"),
    ],
)
def test_other_lines_become_messages(text: str, level: str, logger: str) -> None:
    sink = Sink(as_json=True)
    (line,) = (sink.feed(text.encode("utf-8", "surrogateescape")) + sink.end()).decode().splitlines()
    record = json.loads(line)
    assert (record["level"], record["logger"]) == (level, logger)
    assert record["message"] == text.replace("\udcff", "\ufffd")
    assert line.isascii()


def test_a_progress_bar_joins_no_record() -> None:
    lines = sunk(f"Loading 1%\rLoading 2%{RECORD}\n\n{RECORD}\n")
    assert messages(lines) == ["Loading 1%", "Loading 2%", "so", "so"]


def test_text_stays_unchanged() -> None:
    text = "Loading 1%\rLoading 2%\n\n    indented\n/x/y.py:7: DeprecationWarning: old\n  code()\n"
    sink = Sink(as_json=False)
    assert sink.feed(text.encode()).decode() == text


@given(st.lists(st.sampled_from([RECORD, *HIDDEN, "plain", "", "  code", "a\rb", "\u2028"])), st.data())
def test_cuts_between_reads_change_nothing(lines: list[str], data: st.DataObject) -> None:
    whole = "".join(f"{line}\n" for line in lines).encode()
    cut = data.draw(st.integers(0, len(whole)))
    sink = Sink(as_json=False)
    assert sink.feed(whole[:cut]) + sink.feed(whole[cut:]) == Sink(as_json=False).feed(whole)


def test_an_endless_line_takes_no_more_memory() -> None:
    sink = Sink(as_json=True)
    for _ in range(40):
        sink.feed(b"x" * 2**16)
    assert len(sink.end()) < 2**20


def test_a_request_to_flush_is_no_line() -> None:
    sink = Sink(as_json=True)
    assert messages(sink.feed(b"half" + FLUSH + b"\n").decode().splitlines()) == ["half"]
    assert sink.flushes == 1


def test_every_hidden_text_has_a_reason_and_hides_nothing_else() -> None:
    assert all(entry.reason.endswith(".") for entry in HARMLESS)
    text = "Model Runner V2 requires Triton; using the V1 model runner instead."
    assert is_harmless("vllm.config.vllm", text)
    assert not is_harmless("vllm.config.vllm", text + " The answers are wrong.")
    assert not is_harmless("vllm.config.model", text)
    assert not is_harmless("app.part", text)


def test_lines_of_children_arrive_before_the_block_ends() -> None:
    status, lines = redirected("json", "subprocess.run(['sh', '-c', 'echo child >&2']); sys.stderr.write('half')")
    assert status == 0
    assert messages(lines[:-1]) == ["child", "half"]
    assert lines[-1] == "after"


def test_a_signal_loses_nothing() -> None:
    status, lines = redirected("json", "os.write(2, b'last'); os.kill(os.getpid(), signal.SIGTERM)")
    assert status == -signal.SIGTERM
    assert messages(lines) == ["last"]


def test_a_crash_of_the_interpreter_is_json() -> None:
    status, lines = redirected("json", "import faulthandler; faulthandler.enable(); os.abort()")
    assert status == -signal.SIGABRT
    assert messages(lines)[0] == "Fatal Python error: Aborted"


def test_a_group_wide_signal_does_not_end_the_sink_first() -> None:
    block = "signal.signal(signal.SIGINT, lambda *_: os.write(2, b'still here\\n')); os.killpg(0, signal.SIGINT)"
    status, lines = redirected("json", f"os.setpgrp(); {block}")
    assert status == 0
    assert messages(lines[:-1]) == ["still here"]


def test_without_the_sink_the_server_goes_on() -> None:
    block = "import psutil; [child.kill() for child in psutil.Process().children()]; os.write(1, b'goes on')"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(block=block), "text"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "goes on")
    assert done.stderr == "after\n"
