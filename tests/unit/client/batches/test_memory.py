"""Memory of ``tenora batch run``: it does not grow with the input."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.batch_server import BatchServer, batch_server

_MIB = 2**10  # in the unit of /proc, KiB

#: Runs the command, and prints the most memory of this process. getrusage would count the parent's before exec.
_MEASURED = """
import sys
from tenora_client.cli.root import app
try:
    app()
finally:
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(line.split()[1])
"""


def peak_kib(server: BatchServer, path: Path) -> int:
    environment = {**os.environ, "TENORA_URL": server.url, "TENORA_KEY": "tnr_key"}
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, "batch", "run", str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


def write_table(path: Path, lines: int) -> Path:
    with path.open("w") as file:
        file.write("text,n\n")
        file.writelines(f"{'question ' * 110}{n},{n}\n" for n in range(lines))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_fifty_thousand_lines_take_little_more_than_ten(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"{lines}{suffix}" for lines in (10, 50_000)]
    for path in paths:
        if suffix == ".csv":
            write_table(path, int(path.stem))
        else:
            path.write_text(f'{{"prompt": "{"question " * 110}"}}\n' * int(path.stem))
    with batch_server() as server:
        few, many = (peak_kib(server, path) for path in paths)
    assert many - few <= 128 * _MIB
    with (tmp_path / f"50000.answers{suffix}").open("rb") as output:
        assert sum(1 for _ in output) == 50_000 + (suffix == ".csv")
