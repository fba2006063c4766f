"""Environments of ``tenora-client``: its wheel on the oldest and the newest Python of this machine.

The dependencies come from locks with hashes that hold for all its Pythons: the newest versions, the oldest that the
package allows, and the newest with the extra for Parquet.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from deploy.install import ROOT, VENV, uv, uv_environment

SOURCE = ROOT / "client"
LOCKS = Path(__file__).resolve().parent / "package_locks"
#: Minor versions of Python 3 that the package supports.
MINORS = range(9, 15)
_STAMP = "lock"
_COMPILE = ("--universal", "--python-version", "3.9", "--generate-hashes")
_NO_SOURCE = ("build", "*.egg-info", "__pycache__")


@dataclass(frozen=True, slots=True)
class Environment:
    """Environment with the wheel.

    Attributes:
        name: folder below ``.clients``.
        resolution: versions of the dependencies, as uv names the choice.
        newest: whether it has the newest Python of this machine, else the oldest.
        extra: extra of the package; empty for none.
    """

    name: str
    resolution: str
    newest: bool
    extra: str = ""

    @property
    def folder(self) -> Path:
        return ROOT / ".clients" / self.name

    @property
    def lock(self) -> Path:
        return LOCKS / f"{self.extra or self.resolution}.txt"

    def _minor(self) -> int:
        return pythons()[-1 if self.newest else 0][0]

    def is_current(self) -> bool:
        """Return whether the environment has the package as its source is now."""
        stamp = self.folder / _STAMP
        return stamp.exists() and stamp.read_text(encoding="utf-8") == self._fingerprint()

    def install(self) -> None:
        """Make the environment if it is not current."""
        if self.is_current():
            return
        environment = uv_environment("cpu")
        _, python = pythons()[-1 if self.newest else 0]
        uv(["venv", "--quiet", "--clear", "--python", str(python), str(self.folder)], environment)
        wheel = build_wheel(self.folder, environment)
        target = ["--quiet", "--python", str(self.folder / "bin" / "python")]
        uv(["pip", "sync", *target, "--require-hashes", str(self.lock)], environment)
        uv(["pip", "install", *target, "--no-deps", "--no-index", str(wheel)], environment)
        (self.folder / _STAMP).write_text(self._fingerprint(), encoding="utf-8")

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(self.lock.read_bytes())
        for path in sorted(_source_files()):
            digest.update(f"{path.relative_to(SOURCE)}\0".encode() + path.read_bytes())
        return f"{self._minor()}\n{digest.hexdigest()}"


ENVIRONMENTS = (
    Environment("tenora-client-oldest", "highest", newest=False),
    Environment("tenora-client-newest", "highest", newest=True),
    Environment("tenora-client-lowest", "lowest-direct", newest=False),
)
PARQUET = Environment("tenora-client-parquet", "highest", newest=True, extra="parquet")


def install() -> None:
    for environment in (*ENVIRONMENTS, PARQUET):
        environment.install()


def compile_locks(environment: dict[str, str]) -> None:
    for lock, one in {one.lock: one for one in (*ENVIRONMENTS, PARQUET)}.items():
        extra = ["--extra", one.extra] if one.extra else []
        target = ["client/pyproject.toml", *extra, "--resolution", one.resolution, "-o", str(lock.relative_to(ROOT))]
        uv(["pip", "compile", "--quiet", "--upgrade", *_COMPILE, *target], environment)


def build_wheel(folder: Path, environment: dict[str, str]) -> Path:
    """Build the wheel into a folder, with the setuptools of the server's environment."""
    with tempfile.TemporaryDirectory() as work:
        # The build leaves files in its source.
        source = shutil.copytree(SOURCE, Path(work) / "client", ignore=shutil.ignore_patterns(*_NO_SOURCE))
        build = ["build", "--quiet", "--wheel", "--no-build-isolation", "--python", str(VENV / "bin" / "python")]
        uv([*build, "-o", str(folder), str(source)], environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


@cache
def pythons() -> list[tuple[int, Path]]:
    """Return the Pythons of this machine that the package supports, oldest first: its minor version and its path."""
    found = {sys.version_info.minor: Path(sys.executable)}
    versions = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for minor in MINORS:
        names = [shutil.which(f"python3.{minor}"), *map(str, versions.glob(f"3.{minor}.*/bin/python"))]
        working = [Path(name) for name in names if name and _is_python(name, minor)]
        if working:
            found.setdefault(minor, working[0])
    return sorted(found.items())


def _is_python(path: str, minor: int) -> bool:
    """Return whether the program runs: a shim of pyenv does not if its version is not active."""
    program = "import sys; print(sys.version_info.minor)"
    done = subprocess.run([path, "-c", program], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == str(minor)


def _source_files() -> Iterator[Path]:
    for path in SOURCE.rglob("*"):
        parts = path.relative_to(SOURCE).parts
        if path.is_file() and not any(part in ("build", "__pycache__") or part.endswith(".egg-info") for part in parts):
            yield path
