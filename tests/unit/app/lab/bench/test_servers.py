"""Start, monitor and stop the compared servers."""

import os
import subprocess
import sys
import time
from subprocess import PIPE

import httpx
import psutil
import pytest

from app.lab.bench import servers
from app.lab.bench.rivals import base_only
from app.lab.bench.servers import Server, ServerFailed

HTTP = ["http.server", "--bind", "127.0.0.1", "--directory"]


def test_a_server_runs_while_the_block_lasts(tmp_path):
    port = servers.free_port()
    command = [*HTTP, str(tmp_path), str(port)]
    with servers.running("files", command, port=port, ready="/", env=os.environ, log=tmp_path / "log") as server:
        assert httpx.get(server.url, trust_env=False).status_code == 200
        assert server.cpu_s() > 0
        assert server.peak_bytes() >= psutil.Process(server.pid).memory_info().rss * 0.5 > 0
        assert psutil.pid_exists(server.pid)
    assert not psutil.pid_exists(server.pid)
    with pytest.raises(ServerFailed, match="files has ended"):
        server.cpu_s()


def test_the_peak_memory_is_that_since_the_last_reset():
    code = "bytearray(2**27); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], process_group=0, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        server = Server("memory", 0, process.pid)
        assert server.peak_bytes() > 2**27
        server.reset_peak()
        assert 0 < server.peak_bytes() < 2**27
        process.stdin.write(b"\n")


def test_children_in_another_session_belong_to_the_server():
    child = "held = bytearray(2**27); sum(range(10**6)); print(flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", code], process_group=0, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        server = Server("parent", 0, process.pid)
        assert server.peak_bytes() > psutil.Process(process.pid).memory_info().rss + 2**27
        assert server.children_cpu_s() > 0
        process.stdin.write(b"\n")


def test_a_killed_server_has_ended(tmp_path):
    port = servers.free_port()
    command = [*HTTP, str(tmp_path), str(port)]
    with servers.running("files", command, port=port, ready="/", env=os.environ, log=tmp_path / "log") as server:
        server.kill()
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url, trust_env=False)
        assert server.peak_bytes() == 0


def test_a_server_that_ends_is_told_with_its_log(tmp_path):
    with (
        pytest.raises(ServerFailed, match="unrecognized arguments: --nonsense"),
        servers.running(
            "files", ["http.server", "--nonsense"], port=1, ready="/", env=os.environ, log=tmp_path / "log"
        ),
    ):
        pass


def test_cpu_time_is_this_processs():
    server = Server("self", 0, os.getpid())
    before, mark = server.cpu_s(), time.process_time()
    while time.process_time() - mark < 0.2:
        pass
    assert server.cpu_s() - before > 0.15
    assert server.cpu_s() <= sum(os.times()[:2]) + 0.1


def test_each_adapter_is_asked_for_with_its_tenants_key():
    server = Server("tenora", 0, 0, {"a": "base's"}, {"pricing": {"a": "pricing's"}})
    assert [server.headers_for(name)["a"] for name in ("pricing", "other", None)] == ["pricing's", "base's", "base's"]
    assert [server.model_for(name) for name in ("pricing", None)] == ["pricing", "base"]
    assert base_only(server).model_for("pricing") == "base"
    assert base_only(server).headers_for("pricing") == {"a": "pricing's"}


def test_only_the_engines_settings_reach_a_server(monkeypatch):
    monkeypatch.setenv("TENORA_DATABASE_URL", "postgresql+psycopg://in/use")
    monkeypatch.setenv("TENORA_ENGINE__MAX_LORAS", "2")
    monkeypatch.setenv("TENORA_ENGINE__DTYPE", "auto")
    env = servers.environment(TENORA_ENGINE__DTYPE="float32")
    assert "TENORA_DATABASE_URL" not in env
    assert (env["TENORA_ENGINE__MAX_LORAS"], env["TENORA_ENGINE__DTYPE"]) == ("2", "float32")
    assert env["PATH"] == os.environ["PATH"]


def test_a_command_that_fails_is_told():
    assert "usage" in servers.run_module("http.server", "--help", env=os.environ)
    with pytest.raises(ServerFailed, match="unrecognized arguments"):
        servers.run_module("http.server", "--nonsense", env=os.environ)
