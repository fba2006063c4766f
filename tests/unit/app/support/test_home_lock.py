"""Lock on HOME between processes."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from app.support.home import HomeInUse, exclusive

#: Holds the lock, starts a child that outlives it, and prints the child's id. Both wait for the end of their input.
HOLD = """
import subprocess, sys
from pathlib import Path
from app.support.home import exclusive
with exclusive(Path(sys.argv[1])):
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


def test_it_makes_home_for_its_owner_only(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    with exclusive(home):
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert stat.S_IMODE((home / "lock").stat().st_mode) == 0o600


def test_a_second_one_is_told_who_holds_it_until_that_has_let_go(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("pid 1 on a machine of long ago, which has a long name\n")
    with exclusive(tmp_path):
        for _ in range(2):
            with pytest.raises(HomeInUse, match=rf"is in use by pid {os.getpid()} on \S+[.] Stop .*TENORA_HOME"):
                exclusive(tmp_path).__enter__()
        with exclusive(tmp_path / "another"):
            pass
    with exclusive(tmp_path):
        pass


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(HomeInUse, match=f"pid {holder.pid} "):
            exclusive(tmp_path).__enter__()
        holder.kill()
        holder.wait()
        os.kill(child, 0)
        with exclusive(tmp_path):
            pass
    finally:
        holder.kill()
        holder.stdin.close()
        holder.stdout.close()
