"""Air-gapped install: a bundle of small wheels, moved and installed without Python, network or registry."""

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUNDLE = ROOT / "deploy" / "gpu" / "bundle.py"
# An environment made by uv has no pip.
PYTHON = Path(sys.base_prefix) / "bin" / "python3.11"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.base_prefix == "/usr", reason="bundle.py does not copy a distribution's Python"),
]
# Commands that install.sh may call. `sh` starts it and pip's own children.
TOOLS = ("sh", "cat", "mkdir", "rm", "sha256sum", "tail", "tar")
WHEELS = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
LARGE = "greeting-1.0-py3-none-any.whl"
# The proof imports this module. Like the real engine, it may need a driver.
ENGINE = b"""
import os
from greeting import HELLO as LLM
if "NO_DRIVER" in os.environ:
    raise ImportError("no driver")
"""


@dataclass(frozen=True)
class Source:
    """Input of bundle.py that replaces the GPU lock and a registry."""

    lock: Path
    wheels: Path

    def bundle(self, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
        given = ("--lock", str(self.lock), "--wheels", str(self.wheels))
        return subprocess.run(
            [PYTHON, BUNDLE, folder, *given, *options], capture_output=True, text=True, env=pip_environment()
        )


def pip_environment() -> dict[str, str]:
    """Return an environment without registry settings: a test that asks a registry fails."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PIP_")} | {"PIP_NO_INDEX": "1"}


def write_wheel(path: Path, files: Mapping[str, bytes]) -> None:
    name, version = path.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": WHEELS,
    }
    content = {name: text.encode() for name, text in metadata.items()} | dict(files)
    content[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*content, f"{info}/RECORD"]).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in content.items():
            wheel.writestr(name, data)


def write_lock(lock: Path, wheels: Path) -> None:
    lines = []
    for path in sorted(wheels.glob("*.whl")):
        name, version = path.name.split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n")
    lock.write_text("".join(lines))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("source")
    wheels = folder / "wheels"
    wheels.mkdir()
    write_wheel(wheels / "vllm-1.0-py3-none-any.whl", {"vllm.py": ENGINE})
    write_wheel(wheels / LARGE, {"greeting.py": b"HELLO = 'hello'\n", "noise.bin": os.urandom(3 * 2**20)})
    # Build backend of the editable install, in the locked version.
    setuptools = importlib.metadata.distribution("setuptools")
    write_wheel(
        wheels / f"setuptools-{setuptools.version}-py3-none-any.whl",
        {
            str(file): Path(str(file.locate())).read_bytes()
            for file in setuptools.files or ()
            if file.suffix != ".pyc"
            and "tests" not in file.parts
            and file.name not in {"RECORD", "WHEEL", "METADATA", "INSTALLER", "REQUESTED"}
        },
    )
    write_lock(folder / "lock.txt", wheels)
    return Source(folder / "lock.txt", wheels)


@pytest.fixture(scope="module")
def bundle(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a bundle in pieces of 2 MiB and move it to another folder."""
    made = tmp_path_factory.mktemp("made") / "bundle"
    done = source.bundle(made, "--split", "2MiB")
    assert done.returncode == 0, done.stderr
    return Path(shutil.move(made, tmp_path_factory.mktemp("moved") / "medium"))


@pytest.fixture
def copied(bundle: Path, tmp_path: Path) -> Path:
    """Copy the bundle for one test to break; unchanged files stay shared."""
    return Path(shutil.copytree(bundle, tmp_path / "bundle", copy_function=os.link))


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools")
    for tool in TOOLS:
        (folder / tool).symlink_to(str(shutil.which(tool)))
    return folder


@dataclass(frozen=True)
class Installer:
    tools: Path

    def __call__(
        self, bundle: Path, target: Path, *options: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.tools / "sh"), str(bundle / "install.sh"), *options, str(target)]
        environment = {"PATH": str(self.tools), **(variables or {})}
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")


@pytest.fixture(scope="module")
def install(tools: Path) -> Installer:
    return Installer(tools)


@pytest.fixture(scope="module")
def installed(bundle: Path, install: Installer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("target") / "tenora"
    done = install(bundle, target)
    assert done.returncode == 0, done.stderr
    return target


def replace(path: Path, data: bytes) -> None:
    """Replace a file that may be shared with the bundle of the other tests."""
    path.unlink()
    path.write_bytes(data)


def run(target: Path, code: str) -> str:
    command = [str(target / ".venv" / "bin" / "python"), "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={}, cwd="/").stdout


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    for word in words:
        assert word in line


def test_pieces_are_no_larger_than_asked(bundle: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in bundle.rglob("*") if path.is_file()}
    assert max(sizes.values()) == 2 * 2**20
    assert f"{LARGE}.part00001" in sizes
    assert LARGE not in sizes


def test_manifest_has_every_file(bundle: Path) -> None:
    lines = [line.split() for line in (bundle / "manifest.sha256").read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    present = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert set(listed) == present - {"manifest.sha256"}
    for name, digest in listed.items():
        assert hashlib.sha256((bundle / name).read_bytes()).hexdigest() == digest


def test_installed_environment_has_the_wheels_and_tenora(installed: Path) -> None:
    assert run(installed, "import greeting; print(greeting.HELLO)") == "hello\n"
    assert run(installed, "import adapters; print(adapters.__file__)") == f"{installed}/adapters/__init__.py\n"
    assert (installed / ".venv" / "bin" / "tenora").is_file()
    assert not (installed / ".bundle-work").exists()


def test_environment_holds_nothing_but_the_lock_and_tenora(installed: Path) -> None:
    code = "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"
    assert run(installed, code).split() == ["greeting", "setuptools", "tenora", "tenora-client", "vllm"]


def test_installed_python_is_independent_of_its_source(installed: Path) -> None:
    code = (
        "import ctypes, hashlib, lzma, sqlite3, ssl, sys, sysconfig\n"
        "print(open('/proc/self/maps').read(), sys.path, sys.base_prefix, sysconfig.get_paths())\n"
        "print(sysconfig.get_config_var('LIBDIR'), sysconfig.get_config_var('INCLUDEPY'))"
    )
    said = run(installed, code)
    assert sys.base_prefix not in said
    assert f"{installed}/.tools/python/include/python3.11" in said
    assert (installed / ".tools" / "python" / "include" / "python3.11" / "Python.h").is_file()


def test_copied_python_is_small_and_loads_its_own_libraries(installed: Path) -> None:
    python = installed / ".tools" / "python"
    size = sum(path.stat().st_size for path in python.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert size < 120 * 2**20
    assert not (python / "lib" / "python3.11" / "test").exists()
    maps = run(installed, "import ctypes, ssl; print(open('/proc/self/maps').read())")
    outside = {Path(line.split()[-1]).name for line in maps.splitlines() if ".so" in line and str(python) not in line}
    assert {name.split(".")[0].split("-")[0] for name in outside} <= {"ld", "libc", "libm", "libdl", "libpthread"}


def test_second_run_does_nothing(bundle: Path, installed: Path, install: Installer) -> None:
    def state() -> set[tuple[str, int]]:
        return {(str(path), path.lstat().st_mtime_ns) for path in installed.rglob("*")}

    before = state()
    done = install(bundle, installed)
    assert (done.returncode, done.stderr) == (0, "")
    assert "already" in done.stdout
    assert state() == before


def test_flipped_byte_is_named(copied: Path, install: Installer, tmp_path: Path) -> None:
    piece = copied / "wheels" / f"{LARGE}.part00001"
    data = bytearray(piece.read_bytes())
    data[1000] ^= 1
    replace(piece, bytes(data))
    assert_refused(install(copied, tmp_path / "target"), f"wheels/{LARGE}.part00001 is broken")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("name", [f"wheels/{LARGE}.part00000", "project.tar.part00000", "lock.txt", "manifest.sha256"])
def test_missing_file_is_named(copied: Path, install: Installer, tmp_path: Path, name: str) -> None:
    (copied / name).unlink()
    assert_refused(install(copied, tmp_path / "target"), f"{name} is missing")
    assert not (tmp_path / "target").exists()


def test_installer_refuses_a_wheel_that_the_lock_does_not_name(
    copied: Path, install: Installer, tmp_path: Path
) -> None:
    """The bundle has a substituted wheel and a manifest that matches it."""
    wheel, manifest = copied / "wheels" / "vllm-1.0-py3-none-any.whl", copied / "manifest.sha256"
    before = hashlib.sha256(wheel.read_bytes()).hexdigest()
    replace(wheel, wheel.read_bytes() + b"\0")
    after = hashlib.sha256(wheel.read_bytes()).hexdigest()
    replace(manifest, manifest.read_bytes().replace(before.encode(), after.encode()))
    assert_refused(
        install(copied, tmp_path / "target"), f"wheels/{wheel.name} does not have a hash that lock.txt names"
    )
    assert not (tmp_path / "target").exists()


def test_wheel_that_is_not_in_the_bundle_leaves_nothing(copied: Path, install: Installer, tmp_path: Path) -> None:
    """The manifest lacks the wheel as well, so pip is the first to miss it."""
    wheel, manifest = copied / "wheels" / "vllm-1.0-py3-none-any.whl", copied / "manifest.sha256"
    lines = [line for line in manifest.read_text().splitlines(keepends=True) if wheel.name not in line]
    wheel.unlink()
    replace(manifest, "".join(lines).encode())
    done = install(copied, tmp_path / "target")
    assert done.returncode != 0
    assert "No matching distribution found for vllm==1.0" in done.stderr
    assert "The wheels could not be installed" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "target").exists()


def test_failed_proof_leaves_nothing(bundle: Path, install: Installer, tmp_path: Path) -> None:
    done = install(bundle, tmp_path / "target", variables={"NO_DRIVER": "1"})
    assert done.returncode != 0
    assert "ImportError: no driver" in done.stderr
    assert "vLLM cannot be imported" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "target").exists()


def test_checkout_with_the_same_lock_keeps_its_files(
    bundle: Path, source: Source, install: Installer, tmp_path: Path
) -> None:
    """The checkout gets .venv and its Python. Without the proof, a missing driver does not matter."""
    target = tmp_path / "target"
    (target / ".git").mkdir(parents=True)
    for folder in ("adapters", "app", "migrations"):
        (target / folder).symlink_to(ROOT / folder)
    # pip writes into this one, as it does into the checkout.
    shutil.copytree(ROOT / "client", target / "client", ignore=shutil.ignore_patterns("*.egg-info", "build"))
    shutil.copytree(ROOT / "deploy", target / "deploy")
    shutil.copy(source.lock, target / "deploy" / "locks" / "gpu.txt")
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, target / file)
    done = install(bundle, target, "--no-proof", variables={"NO_DRIVER": "1"})
    assert done.returncode == 0, done.stderr
    assert "so the environment is not tested" in done.stdout
    assert not (target / "Makefile").exists()
    code = "from deploy import install; assert install.STAMP.read_text() == install.fingerprint('gpu')"
    subprocess.run([target / ".venv" / "bin" / "python", "-c", code], check=True, cwd=target)


def test_folder_with_other_files_is_left_alone(bundle: Path, install: Installer, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("mine")
    assert_refused(install(bundle, tmp_path / "target"), "is not empty")
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["mine"]


def test_killed_install_is_told(bundle: Path, install: Installer, tmp_path: Path) -> None:
    work = tmp_path / "target" / ".bundle-work"
    work.mkdir(parents=True)
    assert_refused(install(bundle, tmp_path / "target"), "still runs or was killed", f"remove {tmp_path / 'target'}")
    assert work.is_dir()


def test_checkout_with_another_lock_is_left_alone(bundle: Path, install: Installer, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / ".git").mkdir(parents=True)
    assert_refused(install(bundle, target), "deploy/locks/gpu.txt is not the lock of this bundle")
    assert [path.name for path in target.iterdir()] == [".git"]


def test_bundle_refuses_a_wheel_whose_hash_is_not_the_locks(source: Source, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    shutil.copytree(source.wheels, wheels)
    with (wheels / LARGE).open("ab") as file:
        file.write(b"\0")
    done = Source(source.lock, wheels).bundle(tmp_path / "bundle")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(f"bundle.py: {LARGE} does not have a hash that the lock names")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wheels"]


def test_bundle_refuses_to_slim(source: Source, tmp_path: Path) -> None:
    assert_refused(source.bundle(tmp_path / "bundle", "--slim", "sm_90"), "nvprune", "shared libraries")
    assert not (tmp_path / "bundle").exists()


def test_python_of_an_archive_is_taken(bundle: Path, source: Source, tmp_path: Path) -> None:
    """Archives of relocatable builds have their files in a folder."""
    python = tmp_path / "downloaded" / "python"
    python.mkdir(parents=True)
    pieces = sorted(bundle.glob("python.tar.part*"))
    subprocess.run(["tar", "-xf", "-", "-C", python], input=b"".join(p.read_bytes() for p in pieces), check=True)  # noqa: S607
    subprocess.run(["tar", "-cf", tmp_path / "python.tar", "-C", python.parent, "python"], check=True)  # noqa: S607
    done = source.bundle(tmp_path / "again", "--python", str(tmp_path / "python.tar"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again" / "python.tar").stat().st_size > 2**20


def test_folder_without_a_python_is_refused(source: Source, tmp_path: Path) -> None:
    done = source.bundle(tmp_path / "bundle", "--python", str(source.wheels))
    assert_refused(done, "has no bin/python3.11")
    assert sorted(tmp_path.iterdir()) == []
