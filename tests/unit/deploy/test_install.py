"""The installer's checks of the machine, before it changes anything."""

import os
import subprocess
import sys
from pathlib import Path

DEPLOY = Path(__file__).parents[3] / "deploy"
#: Runs the installer as if there were no environment yet, and without doing anything.
INSTALL = """
import sys
from pathlib import Path
import install
install.STAMP = Path("/nonexistent/stamp")
install.uv_environment = lambda device: {}
install.install_uv = lambda: sys.exit("The installation has begun.")
sys.argv = ["install.py", *sys.argv[1:]]
install.main()
"""


def said(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", INSTALL, *arguments],
        env=os.environ | {"PYTHONPATH": str(DEPLOY)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_missing_libnuma_ends_the_installation(tmp_path: Path) -> None:
    # The dynamic loader picks this empty file, finds no library in it and fails.
    (tmp_path / "libnuma.so.1").touch()
    (line,) = said(LD_LIBRARY_PATH=str(tmp_path)).splitlines()
    assert "cannot load libnuma.so.1" in line
    assert "apt-get install libnuma1" in line


def test_libnuma_is_for_the_cpu_build_only(tmp_path: Path) -> None:
    (tmp_path / "libnuma.so.1").touch()
    assert said("--device", "gpu", LD_LIBRARY_PATH=str(tmp_path)) == "The installation has begun.\n"
    assert said("--device", "cpu") == "The installation has begun.\n"
