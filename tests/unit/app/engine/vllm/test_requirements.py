"""System requirements of vLLM's CPU build, and errors if one is missing. Each test runs in its own process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.engine.vllm.requirements import check_libraries, do_without_compiler

WITHOUT = "import os; from app.engine.vllm.requirements import do_without_compiler as f; e = {}; f(e); print(e)"


def said(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


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


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["/nonexistent/g++", "/dev/null", "false"])
def test_without_a_compiler_nothing_is_compiled(compiler: str) -> None:
    answer = said(WITHOUT, CXX=compiler)
    assert "{'TORCHDYNAMO_DISABLE': '1'}" in answer
    assert answer.count("no C++ compiler") == 1


@pytest.mark.slow
def test_with_a_compiler_all_stays_as_it_is(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o700)
    assert said(WITHOUT, CXX=str(compiler)) == "{}\n"


def test_who_sets_the_variable_decides() -> None:
    environment = {"TORCHDYNAMO_DISABLE": "0", "CXX": "/nonexistent/g++"}
    do_without_compiler(environment)
    assert environment["TORCHDYNAMO_DISABLE"] == "0"
