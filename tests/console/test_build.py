"""The committed build of the console is what its source gives, and its pure modules pass their tests."""

import subprocess
from pathlib import Path

from deploy.console.build import TARGET, build
from tests.clients.install import node


def test_the_committed_build_is_a_fresh_build(tmp_path: Path) -> None:
    build(tmp_path / "fresh")
    fresh = _files(tmp_path / "fresh")
    committed = _files(TARGET)
    assert fresh.keys() == committed.keys(), "run `make console`"
    assert fresh == committed, "run `make console`"


def test_the_pure_modules() -> None:
    script = Path(__file__).with_name("modules.test.mjs")
    done = subprocess.run([node(), "--test", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
