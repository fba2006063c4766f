"""Bundle the GPU environment for a machine without a package registry (air-gapped install).

    python3.11 deploy/gpu/bundle.py FOLDER [--split 60MiB] [--python ARCHIVE_OR_FOLDER]

FOLDER gets every wheel of the lock, the committed files of this checkout, a Python 3.11, a manifest and an installer.
`sh FOLDER/install.sh TARGET` there needs a POSIX shell, coreutils and tar, and no network.

Standard library only. pip downloads from its configured index; every wheel must have a hash that the lock names.
"""

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from deploy.gpu.portable_python import NotPortable, copy_python, find_prefix, needed_glibc  # noqa: E402
from deploy.install import LOCKS, pip_configuration  # noqa: E402

INSTALLER = Path(__file__).with_name("install.sh")
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
CHUNK_BYTES = 2**20
#: The installer reads these before it can join pieces.
NEVER_SPLIT = {"install.sh", "lock.txt", "joined.sha256"}
SMALLEST_PIECE_BYTES = 2**20


class BundleError(Exception):
    """The bundle cannot be made. The message says why, and what to do."""


def main() -> None:
    arguments = parse_arguments()
    try:
        make_bundle(arguments)
    except (BundleError, NotPortable) as error:
        raise SystemExit(f"bundle.py: {error}") from None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Bundle the GPU environment for a machine without a package registry.")
    parser.add_argument("folder", type=Path, help="New folder for the bundle")
    parser.add_argument("--split", type=size_bytes, metavar="SIZE", help="Maximum size of a file, such as 60MiB")
    parser.add_argument(
        "--python",
        type=Path,
        metavar="ARCHIVE_OR_FOLDER",
        help="Relocatable Python 3.11; default: a copy of the running one",
    )
    parser.add_argument("--lock", type=Path, default=LOCKS / "gpu.txt", help="Lock with hashes; default: the GPU's")
    parser.add_argument(
        "--wheels", type=Path, metavar="FOLDER", help="Folder to take wheels from, instead of pip's index"
    )
    parser.add_argument("--slim", metavar="sm_NN", help="Not possible yet: keep the kernels of one GPU architecture")
    return parser.parse_args()


def size_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)(KiB|MiB|GiB)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} is not a size. Write a number with KiB, MiB or GiB, such as 60MiB.")
    size = int(match[1]) * UNITS[match[2]]
    if size < SMALLEST_PIECE_BYTES:
        raise argparse.ArgumentTypeError(f"{text} is too small. Pieces have at least 1MiB.")
    return size


def make_bundle(arguments: argparse.Namespace) -> None:
    """Fill a folder next to the target and rename it at the end, so that a bundle is never partial.

    Raises:
        BundleError
        NotPortable
    """
    if arguments.slim:
        raise BundleError(
            "--slim is not possible: nvprune reads object files and static libraries, and the wheels hold shared "
            "libraries. Run again without --slim."
        )
    if not (3, 11, 1) <= sys.version_info < (3, 12):
        raise BundleError(f"Python {sys.version.split()[0]} cannot pick the wheels. Run this with Python 3.11.")
    if importlib.util.find_spec("pip") is None:
        raise BundleError(f"{sys.executable} has no pip. Run this with a Python 3.11 that has it, outside of .venv.")
    folder = arguments.folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BundleError(f"{folder} is not empty. Name a new folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=folder.parent) as work:
        content = Path(work) / "content"
        content.mkdir()
        changed = archive_project(content / "project.tar")
        glibc = archive_python(arguments.python, content / "python.tar", Path(work))
        shutil.copy(arguments.lock, content / "lock.txt")
        download_wheels(content / "lock.txt", arguments.wheels, content / "wheels")
        glibc = max(glibc, glibc_of_wheels(content / "wheels"))
        write_installer(content / "install.sh", glibc)
        if arguments.split:
            split_files(content, arguments.split)
        write_manifest(content)
        content.rename(folder)
    report(folder, glibc)
    if changed:
        sys.stderr.write("bundle.py: The bundle leaves out changes that are not committed.\n")


def archive_project(archive: Path) -> bool:
    """Archive the files of HEAD; True if the checkout has changes that are not committed.

    Raises:
        BundleError
    """
    git = shutil.which("git")
    if git is None:
        raise BundleError("git is missing here; it lists the project's files. Install it.")
    made = subprocess.run([git, "-C", ROOT, "archive", "--output", archive, "HEAD"], capture_output=True, text=True)
    if made.returncode != 0:
        raise BundleError(f"git cannot archive {ROOT}: {made.stderr.strip()}. Run this from a git checkout.")
    changed = subprocess.run([git, "-C", ROOT, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout
    return bool(changed)


def archive_python(source: Path | None, archive: Path, work: Path) -> tuple[int, int]:
    """Archive a relocatable Python, by default a copy of the running one; returns the glibc that it needs.

    Raises:
        NotPortable
        BundleError
    """
    prefix = Path(sys.base_prefix)
    if source is not None and source.is_dir():
        prefix = find_prefix(source)
    elif source is not None:
        unpacked = work / "unpacked"
        unpacked.mkdir()
        tar("-xf", source, "-C", unpacked)
        prefix = find_prefix(unpacked)
    copy = work / "python"
    copy_python(prefix.resolve(), copy)
    tar("-cf", archive, "--owner=0", "--group=0", "--numeric-owner", "-C", copy, ".")
    return needed_glibc(copy)


def tar(*arguments: str | Path) -> None:
    program = shutil.which("tar")
    if program is None:
        raise BundleError("tar is missing here. Install it.")
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise BundleError(f"tar failed: {done.stderr.strip()}. Check the archive and the free disk space.")


def download_wheels(lock: Path, source: Path | None, wheels: Path) -> None:
    """Download every wheel of a lock with pip, which compares the hashes.

    Raises:
        BundleError
    """
    where = [] if source is None else ["--no-index", "--find-links", str(source.resolve())]
    command = [sys.executable, "-m", "pip", "download", "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, *where, "--dest", str(wheels), "-r", str(lock)],
        env=pip_environment(),
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode == 0:
        return
    other_hash = re.search(r"DO NOT MATCH THE HASHES.*?\n\s+\S+ from (\S+)", done.stderr, re.DOTALL)
    if other_hash:
        name = other_hash[1].partition("#")[0].rpartition("/")[2]
        raise BundleError(f"{name} does not have a hash that the lock names. Check where pip's packages come from.")
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    raise BundleError(
        f"pip cannot download the wheels: {(errors or [done.stderr.strip()])[-1].removeprefix('ERROR: ')}"
    )


def pip_environment() -> dict[str, str]:
    """pip's settings as variables, without find-links: a CPU wheel of torch may lie there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    settings = {name: value for name, value in pip_configuration().items() if name != "find-links"}
    environment |= {"PIP_" + name.upper().replace("-", "_"): value for name, value in settings.items()}
    return environment | {"PIP_CONFIG_FILE": os.devnull}


def glibc_of_wheels(wheels: Path) -> tuple[int, int]:
    """glibc that the wheels' platform tags ask for; a wheel with several tags runs with the oldest."""
    tags = (re.findall(r"manylinux_(\d+)_(\d+)_", path.name) for path in wheels.iterdir())
    return max((min((int(major), int(minor)) for major, minor in found) for found in tags if found), default=(2, 17))


def write_installer(path: Path, glibc: tuple[int, int]) -> None:
    path.write_text(INSTALLER.read_text(encoding="utf-8").replace("@GLIBC@", "{}.{}".format(*glibc)), encoding="utf-8")
    path.chmod(0o755)


def split_files(content: Path, limit_bytes: int) -> None:
    """Cut files that are larger than the limit into pieces; joined.sha256 has the hashes of the whole files."""
    joined = []
    for path in files_in(content):
        name = path.relative_to(content).as_posix()
        if path.stat().st_size <= limit_bytes or name in NEVER_SPLIT:
            continue
        joined.append(f"{sha256(path)}  {name}\n")
        split_file(path, limit_bytes)
    if joined:
        (content / "joined.sha256").write_text("".join(joined), encoding="utf-8")


def split_file(path: Path, limit_bytes: int) -> None:
    with path.open("rb") as whole:
        for number in range(-(-path.stat().st_size // limit_bytes)):
            with path.with_name(f"{path.name}.part{number:05}").open("wb") as piece:
                left = limit_bytes
                while left and (chunk := whole.read(min(CHUNK_BYTES, left))):
                    piece.write(chunk)
                    left -= len(chunk)
    path.unlink()


def write_manifest(content: Path) -> None:
    lines = [f"{sha256(path)}  {path.relative_to(content).as_posix()}\n" for path in files_in(content)]
    (content / "manifest.sha256").write_text("".join(lines), encoding="utf-8")


def files_in(content: Path) -> list[Path]:
    return sorted(path for path in content.rglob("*") if path.is_file())


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def report(folder: Path, glibc: tuple[int, int]) -> None:
    files = files_in(folder)
    size = sum(path.stat().st_size for path in files) / UNITS["GiB"]
    sys.stdout.write(
        f"{folder}: {len(files)} files, {size:.2f} GiB; needs glibc {glibc[0]}.{glibc[1]} or newer\n"
        f"SHA-256 of manifest.sha256: {sha256(folder / 'manifest.sha256')}\n"
        f"There: sh {folder.name}/install.sh TARGET\n"
    )


if __name__ == "__main__":
    main()
