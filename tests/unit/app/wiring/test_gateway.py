"""A gateway needs no library of an engine, so it fits into a small process."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from app.settings import Settings
from tests.support.serving import save_base, set_up

#: Bytes. A process that has imported torch and vLLM has over 500 MB.
MOST_BYTES = 250_000_000

IMPORTED = """
import sys
import app.wiring.gateway
raise SystemExit(", ".join({"peft", "torch", "transformers", "vllm"} & set(sys.modules)) or 0)
"""


def test_importing_the_gateway_imports_no_engine() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_gateway_and_its_routes_are_small(tmp_path: Path) -> None:
    base, home = save_base(tmp_path / "base"), tmp_path / "home"
    home.mkdir()
    asyncio.run(set_up(Settings(home=home, base_model=str(base))))
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.app.wiring.gateway_process", str(base), str(home)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["libraries"] == []
    assert measured["peak_bytes"] < MOST_BYTES
