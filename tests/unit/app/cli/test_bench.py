"""``tenora server bench``: invalid options fail before any process starts, and a signal ends all of them."""

import signal
import subprocess
import sys

import psutil
import pytest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--n", "1,many"], "--n is '1,many'. Write numbers separated by commas."),
        (["--alpha", ""], "--alpha is ''."),
        (["--slots", "some"], "--slots is 'some'. Write auto or a number."),
        (["--rivals", "s-lora"], "--rivals has s-lora. Choose from vllm, peft, base."),
        (["--setting", "PATH=/x"], "--setting is 'PATH=/x'. Write TENORA_NAME=VALUE."),
        (["--rounds", "0"], "--rounds"),
    ],
)
def test_the_grid_names_what_is_wrong(alone, arguments, said):
    assert said in alone("bench", "adapters", *arguments, exit_code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--traces", "zipf,weekly"], "--traces has 'weekly'. Choose from zipf, diurnal, flash crowd, mmpp."),
        (["--policies", "random"], "--policies has 'random'. Choose from tenora, round robin,"),
        (["--replicas", "0"], "--replicas"),
    ],
)
def test_the_fleet_names_what_is_wrong(alone, arguments, said):
    assert said in alone("bench", "routing", *arguments, exit_code=2).stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_servers_too(tmp_path, number):
    # A shell starts background jobs with SIGINT ignored.
    with subprocess.Popen(
        [sys.executable, "-c", _MEASURING, tmp_path],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ) as measuring:
        assert measuring.stdout
        server = psutil.Process(int(measuring.stdout.readline()))
        assert server.is_running()
        measuring.send_signal(number)
        assert measuring.wait(30) != 0
        assert not server.is_running()


_MEASURING = """
import os, sys, time
from pathlib import Path
from app.lab.bench import servers
from app.cli.bench import _measuring

folder, port = Path(sys.argv[1]), servers.free_port()
command = ["http.server", "--bind", "127.0.0.1", "--directory", str(folder), str(port)]
with _measuring(), servers.running("files", command, port=port, ready="/", env=os.environ, log=folder / "log") as one:
    print(one.pid, flush=True)
    time.sleep(60)
"""
