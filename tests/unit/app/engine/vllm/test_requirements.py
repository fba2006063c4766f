"""Requirements of vLLM's CPU build, and errors if one is missing."""

import os
import subprocess
import sys
from pathlib import Path

from app.engine.vllm.requirements import check_libraries, compile_nothing


def test_libnuma_is_there() -> None:
    check_libraries()


def test_a_missing_libnuma_is_one_sentence(tmp_path: Path) -> None:
    # The dynamic loader picks this empty file, finds no library in it and fails.
    (tmp_path / "libnuma.so.1").touch()
    tenora = "from tenora_client.cli.root import main; main()"
    home = tmp_path / "home"
    answer = subprocess.run(
        [sys.executable, "-c", tenora, "serve", "--port", "0"],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "TENORA_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert "libnuma.so.1" in line
    assert "apt-get install libnuma1" in line
    assert not home.exists()


def test_a_cpu_engine_compiles_nothing() -> None:
    environment: dict[str, str] = {}
    compile_nothing(environment)
    assert environment == {"TORCHDYNAMO_DISABLE": "1"}


def test_who_sets_the_variable_decides() -> None:
    environment = {"TORCHDYNAMO_DISABLE": "0"}
    compile_nothing(environment)
    assert environment["TORCHDYNAMO_DISABLE"] == "0"
