"""The prose check names each kind of defect with file and line, and accepts clean text."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.lint import prose

CLEAN_MODULE = '''"""Fair semaphore: round-robin over tenants."""

# A comment that says what the code cannot.
from app.database import pins

TEXT = "Check TENORA_KEY."


def grant() -> str:
    """Grant a permit to the next tenant.

    What follows the first line may begin with any word. ``beside`` in code is a name.
    """
    return TEXT + "# text"
'''
CLEAN_PAGE = """# Who may read this heading of a page that has no sentence

A short sentence with `code beside it`. Another one, with a [link](https://example.org/beside).

| cell | cell |
|---|---|
| one | two |

```sh
tenora adapters push beside so many words
tenora that would be one sentence with more than thirty words
tenora if it were prose and no code in a block of the page
tenora but it is code and so it is not counted at all
```
"""
LONG = " ".join(["Word"] * 31)

MODULES = {
    '"""What a module does."""\n': (1, "'What'"),
    '"""Fine."""\n\n\nclass A:\n    """\n    Whether it is so.\n    """\n': (5, "'Whether'"),
    "async def f():\n    '''Those who wait.'''\n": (2, "'Those'"),
    '"""Fine.\n\nNobody reads it.\n"""\n': (3, "'Nobody'"),
    "x = 1\ny = 2  # whoever comes\n": (2, "'whoever'"),
    'x = {\n    "key": f"somebody has {1}",\n}\n': (2, "'somebody'"),
    "# The first line of a comment, with a folder of\n# its own.\n": (1, "'of its own'"),
    "#: It is told once.\nx = 1\n": (1, "'is told'"),
    '"""Refuse a value: found 3, allowed 1 or 2."""\n': (1, "'found 3, allowed'"),
    '"""Fine.\n\nNever does it wait.\n"""\n': (3, "'Never does'"),
    'raise ValueError(f"{1}: found {2}, allowed {3}")\n': (1, "'found -, allowed'"),
    "from app.database import pins as stored\n": (1, "pins is imported as stored"),
}
PAGES = {
    f"# Title\n\nA short one. {LONG}.\n": (3, "has 31 words"),
    f"# Title\n\nText.\n\n- item\n  {LONG}\n": (5, "has 32 words"),
    f"| a | b |\n|---|---|\n| short | {LONG} |\n": (3, "has 31 words"),
    "Text that goes\nbeside other text.\n": (2, "'beside'"),
    "## Made anew\n": (1, "'anew'"),
    "Kept as it is.\n": (1, "'as it is'"),
    "It has had its turn.\n": (1, "'has had'"),
}


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def the_only(findings: list[prose.Finding]) -> prose.Finding:
    assert len(findings) == 1, findings
    return findings[0]


@pytest.mark.parametrize("folder", prose.PACKAGES)
def test_clean_text_passes(tmp_path: Path, folder: str) -> None:
    put(tmp_path, f"{folder}/module.py", CLEAN_MODULE)
    put(tmp_path, "docs/page.md", CLEAN_PAGE)
    put(tmp_path, "README.md", CLEAN_PAGE)
    assert prose.check(tmp_path) == []


@pytest.mark.parametrize("source", MODULES, ids=[problem for _, problem in MODULES.values()])
def test_a_defect_of_a_module_is_named(tmp_path: Path, source: str) -> None:
    put(tmp_path, "adapters/deep/module.py", source)
    line, problem = MODULES[source]
    finding = the_only(prose.check(tmp_path))
    assert str(finding).startswith(f"adapters/deep/module.py:{line}: ")
    assert problem in finding.problem
    assert finding.advice


@pytest.mark.parametrize("source", PAGES, ids=[problem for _, problem in PAGES.values()])
@pytest.mark.parametrize("name", ["README.md", "docs/decisions/0001-page.md", "deploy/benchmarks/RESULTS.md"])
def test_a_defect_of_a_page_is_named(tmp_path: Path, name: str, source: str) -> None:
    put(tmp_path, name, source)
    line, problem = PAGES[source]
    finding = the_only(prose.check(tmp_path))
    assert (finding.path, finding.line) == (name, line)
    assert problem in finding.problem


@pytest.mark.parametrize("word", ["whoever", "nobody", "somebody"])
@pytest.mark.parametrize("name", ["deploy/page.md", "deploy/benchmarks/HISTORY.md", "deploy/benchmarks/RESULTS.md"])
def test_pages_of_deploy_name_people(tmp_path: Path, name: str, word: str) -> None:
    put(tmp_path, name, f"# Title\n\nFirst line,\nthen {word} comes.\n")
    finding = the_only(prose.check(tmp_path))
    assert (finding.path, finding.line, finding.problem) == (name, 4, repr(word))


def test_other_pages_of_deploy_are_checked_less(tmp_path: Path) -> None:
    put(tmp_path, "deploy/benchmarks/HISTORY.md", f"# Title\n\nMade anew. {LONG}.\n")
    assert prose.check(tmp_path) == []


@pytest.mark.parametrize("name", ["Makefile", "deploy/ci/prepare.sh", "deploy/prometheus/alerts.yml"])
def test_comments_of_other_files_are_checked(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, "first: second\n# somebody must act\n")
    assert the_only(prose.check(tmp_path)).line == 2


def test_a_file_of_data_is_not_checked(tmp_path: Path) -> None:
    put(tmp_path, "tests/support/postgres.py", 'import pwd\n\npwd.getpwnam("nobody")\n')
    assert prose.check(tmp_path) == []
    assert all((prose.ROOT / name).exists() for name in (*prose.DATA_FILES, *(name for name, _ in prose.DATA_STRINGS)))


def test_the_command_prints_findings_and_exits_with_1(tmp_path: Path) -> None:
    command = [sys.executable, prose.__file__, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == 0
    put(tmp_path, "docs/page.md", "Told by nobody.\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("docs/page.md:1: 'nobody': name the person")
