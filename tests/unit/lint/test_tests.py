"""Rules for the tests themselves: helpers have their own place, and names are short."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
MODULES = sorted(TESTS.rglob("*.py"))
MAX_NAME = 60
#: Runs the tests of other modules again, with another server.
RUNS_OTHERS = "engine/test_patches_off.py"


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def problems(tree: ast.Module) -> list[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [node.name for node in functions if node.name.startswith("test_") and len(node.name) > MAX_NAME]
    parts = [(name, name.split(".")) for name in imported(tree) if name.startswith("tests.")]
    return long + [name for name, path in parts if any(part == "conftest" or part.startswith("test_") for part in path)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(TESTS)))
def test_names_are_short_and_no_helper_is_in_a_test_module(path: Path) -> None:
    found = problems(ast.parse(path.read_text(encoding="utf-8")))
    assert str(path.relative_to(TESTS)) == RUNS_OTHERS or found == []


@pytest.mark.parametrize(
    "source",
    [
        "from tests.a.test_b import c",
        "import tests.conftest",
        "from tests.a import test_b",
        f"def test_{'x' * 56}(): 0",
    ],
)
def test_each_problem_is_found(source: str) -> None:
    assert problems(ast.parse(source))
