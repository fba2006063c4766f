"""Processes of the fork server: signals, lifetime, environment. They start no engine, because that takes long."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

GONE_S = 60
#: Starts a process as an engine is started, prints its id and the fork server's, and lives until it is killed.
STARTER = """
import os, signal, sys, time
from multiprocessing.forkserver import _forkserver
from app.engine.vllm.worker import fork_server

fork_server._PRELOADED.remove("app.engine.vllm.worker.fork_preload")

def sleep():
    time.sleep(600)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
    process = fork_server.EngineContext().Process(target=sleep)
    process.start()
    print(process.pid, _forkserver._forkserver_pid, flush=True)
    for line in sys.stdin:
        fork_server.end_engines()
        process.join()
        print("ended", flush=True)
    process.join()
"""
#: Sends signals as soon as the fork server's process exists, before it runs any of our code.
SIGNAL_AT_ONCE = """
from multiprocessing import util

def spawn_and_signal(*arguments, spawn=util.spawnv_passfds):
    pid = spawn(*arguments)
    if "forkserver" in arguments[1][-1]:
        os.killpg(0, signal.SIGTERM)
        os.killpg(0, signal.SIGINT)
    return pid

util.spawnv_passfds = spawn_and_signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
"""


@dataclass
class Started:
    starter: subprocess.Popen[str]
    engine: psutil.Process
    fork_server: psutil.Process

    def says(self) -> str:
        assert self.starter.stdout is not None
        return self.starter.stdout.readline().strip()


@contextlib.contextmanager
def starting(folder: Path, code: str) -> Iterator[Started]:
    script = folder / "starter.py"
    script.write_text(code)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as starter:
        assert starter.stdout is not None
        said = iter(starter.stdout.readline, "")
        ids = next(line for line in said if line.strip() != "told")
        engine, fork_server = (psutil.Process(int(pid)) for pid in ids.split())
        try:
            yield Started(starter, engine, fork_server)
        finally:
            for process in (psutil.Process(starter.pid), engine, fork_server):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    with starting(tmp_path, STARTER) as started:
        yield started


def test_a_signal_to_the_servers_group_does_not_reach_them(started: Started) -> None:
    os.killpg(started.starter.pid, signal.SIGTERM)
    assert started.says() == "told"
    for process in (started.engine, started.fork_server):
        assert process.is_running()
        assert os.getsid(process.pid) == started.fork_server.pid
    assert os.getsid(started.starter.pid) == started.starter.pid


def test_nor_does_one_that_comes_before_they_have_a_session(tmp_path: Path) -> None:
    signalled = STARTER.replace("    process = ", SIGNAL_AT_ONCE.replace("\n", "\n    ") + "\n    process = ")
    with starting(tmp_path, signalled) as started:
        for process in (started.engine, started.fork_server):
            assert process.is_running()
            assert os.getsid(process.pid) == started.fork_server.pid
        # Signals are unblocked again: the next one ends the fork server.
        started.fork_server.terminate()
        _, alive = psutil.wait_procs([started.engine], GONE_S)
        assert not alive


def test_they_end_with_a_server_killed_at_engine_start(started: Started) -> None:
    started.starter.kill()
    _, alive = psutil.wait_procs([started.engine, started.fork_server], GONE_S)
    assert not alive


def test_an_engine_ends_with_its_fork_server(started: Started) -> None:
    started.fork_server.kill()
    _, alive = psutil.wait_procs([started.engine], GONE_S)
    assert not alive


def test_a_server_can_end_engines_that_are_half_started(started: Started) -> None:
    assert started.starter.stdin is not None
    started.starter.stdin.write("end\n")
    started.starter.stdin.flush()
    assert started.says() == "ended"
    _, alive = psutil.wait_procs([started.engine], GONE_S)
    assert not alive


#: Starts the fork server ahead, changes a variable and starts a process. It prints whether the fork server is the same
#: and whether its environment disables the compiler.
AHEAD = """
import os, time
from multiprocessing.forkserver import _forkserver
from pathlib import Path
from app.engine.vllm.worker import fork_server

fork_server._PRELOADED.remove("app.engine.vllm.worker.fork_preload")

if __name__ == "__main__":
    {before}
    fork_server.start_ahead()
    ahead = _forkserver._forkserver_pid
    {change}
    process = fork_server.EngineContext().Process(target=time.sleep, args=(600,))
    process.start()
    now = _forkserver._forkserver_pid
    print(now == ahead, "TORCHDYNAMO_DISABLE=1" in Path(f"/proc/{{now}}/environ").read_text().split(chr(0)), flush=True)
    process.kill()
    process.join()
"""
#: vLLM's changes to the environment of a CPU engine.
AS_EXPECTED = "os.environ |= {name: value for name, value in fork_server._started_with.items() if value}"
WITH_COMPILER = "os.environ['TORCHDYNAMO_DISABLE'] = '0'"
ON_A_GPU = "fork_server.is_cpu_build = lambda: False"


@pytest.mark.parametrize(
    ("before", "change", "printed"),
    [
        ("", AS_EXPECTED, "True True"),
        ("", WITH_COMPILER, "False False"),
        # vLLM prepares nothing of it there.
        (ON_A_GPU, "", "True False"),
    ],
)
def test_a_changed_environment_restarts_the_fork_server(tmp_path: Path, before: str, change: str, printed: str) -> None:
    script = tmp_path / "ahead.py"
    script.write_text(AHEAD.format(before=before, change=change))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=GONE_S, check=False)
    assert (done.stdout.strip(), done.returncode) == (printed, 0), done.stderr


#: Starts a process as an engine is started. It and its starter print their environments: as Python sees them, as their
#: program was started with (``/proc/PID/environ``), and as a program that they start sees them.
ENVIRONMENTS = """
import json, os, subprocess, sys
from pathlib import Path
from app.engine.vllm.worker import fork_server

fork_server._PRELOADED.remove("app.engine.vllm.worker.fork_preload")
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"

def show(name, pid):
    started = dict(line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split(chr(0)) if line)
    child = json.loads(subprocess.run([sys.executable, "-c", SHOW], capture_output=True, check=True).stdout)
    print(json.dumps({name: [dict(os.environ), started, child]}), flush=True)

def show_engine():
    show("engine", os.getpid())
    show("fork server", os.getppid())

if __name__ == "__main__":
    process = fork_server.EngineContext().Process(target=show_engine)
    process.start()
    process.join()
    show("starter", os.getpid())
"""
#: Secrets by variable: settings in any case, as a group in JSON, or in a URL, and those of other programs.
SECRETS = {
    "TENORA_PEPPER": "zq-secret",
    "tenora_accepted_peppers": '["zq-secret"]',
    "TENORA_DATABASE_URL": "postgresql://tenora:zq-secret@db/tenora",
    "TENORA_S3_ENDPOINT_URL": "https://user:zq-secret@s3.example.org",
    "TENORA_IMPORTS__HF_TOKEN": "zq-secret",
    "TENORA_IMPORTS": '{"hf_token": "zq-secret"}',
    "TENORA_KEY": "zq-secret",
    "AWS_ACCESS_KEY_ID": "zq-secret",
    "AWS_SECRET_ACCESS_KEY": "zq-secret",
    "AWS_SESSION_TOKEN": "zq-secret",
}
#: Variables that engines keep.
KEPT = {"TENORA_HOME": "/var/lib/tenora", "TENORA_ENGINE__DTYPE": "float32", "HF_TOKEN": "hf-kept", "VLLM_X": "1"}


def test_engines_inherit_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SECRETS | KEPT).items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "environments.py"
    script.write_text(ENVIRONMENTS)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=GONE_S, check=False)
    assert done.returncode == 0, done.stderr
    seen = {name: views for line in done.stdout.splitlines() for name, views in json.loads(line).items()}
    assert seen.keys() == {"engine", "fork server", "starter"}
    for environment in [*seen["engine"], *seen["fork server"]]:
        assert "zq-secret" not in "".join(environment.values())
        assert environment.keys().isdisjoint(SECRETS)
        assert environment.items() >= KEPT.items()
    # The server keeps its secrets.
    for environment in seen["starter"]:
        assert environment.items() >= (SECRETS | KEPT).items()
