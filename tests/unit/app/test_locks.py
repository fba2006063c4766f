"""Lock files: every requirement has a hash, and the installer refuses a file with another hash."""

import base64
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

DEPLOY = Path(__file__).parents[3] / "deploy"
LOCKS = sorted(path for path in (DEPLOY / "locks").glob("*.txt") if path.name != "cpu-overrides.txt")
WHEEL = "harmless-1.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tenora_install", DEPLOY / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_wheel(folder: Path, code: str) -> str:
    """Write a wheel with one module and return its SHA-256."""
    folder.mkdir()
    info = "harmless-1.0.dist-info"
    files = {
        "harmless.py": code,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: harmless\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text)}\n")
    files[f"{info}/RECORD"] = "".join(rows) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_requirement_of_a_lock_has_a_hash(lock: Path) -> None:
    text = lock.read_text().replace("\\\n", " ")
    requirements = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert requirements
    without = [line[:80] for line in requirements if not re.search(r"==\S+.* --hash=sha256:[0-9a-f]{64}", line)]
    assert without == []


def test_the_locks_by_name() -> None:
    names = {
        "containers.txt",
        "cpu.txt",
        "cpu-image.txt",
        "cpu-torch.txt",
        "gpu.txt",
        "gpu-image.txt",
        "ray.txt",
        "uv.txt",
    }
    assert names == {path.name for path in LOCKS}


def requirements_of(name: str) -> dict[str, str]:
    """Return each requirement of a lock with its version, markers and hashes, by its name."""
    text = (DEPLOY / "locks" / f"{name}.txt").read_text().replace("\\\n", " ")
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return {line.partition("==")[0].partition("[")[0]: line for line in lines}


def declared(*groups: str) -> set[str]:
    """Return the names of the dependencies that pyproject.toml declares; the empty group has those of the server."""
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    lists = [project["optional-dependencies"][group] if group else project["dependencies"] for group in groups]
    return {re.split(r"[^\w.-]", line)[0].lower() for lines in lists for line in lines}


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_an_image_has_what_a_server_needs(device: str) -> None:
    image, whole = requirements_of(f"{device}-image"), requirements_of(device)
    assert {name: whole.get(name) for name in image} == image
    client = tomllib.loads((DEPLOY.parent / "client" / "pyproject.toml").read_text())["project"]["dependencies"]
    needed = declared("", device) | {re.split(r"[^\w.-]", line)[0] for line in client}
    assert needed - image.keys() == ({"torch"} if device == "cpu" else set())
    # The servers' own dependencies bring some of the tools.
    assert image.keys() & declared("plots", "dev") <= {"anthropic", "openai", "opentelemetry-proto", "psutil", "pyyaml"}
    assert not image.keys() & {"matplotlib", "moto", "mypy", "pytest", "ruff", "hypothesis"}


def test_a_file_with_another_hash_is_not_installed(install: ModuleType, tmp_path: Path) -> None:
    wanted = make_wheel(tmp_path / "wanted", "VALUE = 1\n")
    make_wheel(tmp_path / "other", "VALUE = 2\n")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"harmless==1.0 --hash=sha256:{wanted}\n")
    unhashed = tmp_path / "unhashed.txt"
    unhashed.write_text("harmless==1.0\n")
    python = tmp_path / "venv" / "bin" / "python"

    def sync(source: str, requirements: Path) -> None:
        places = {"UV_FIND_LINKS": str(tmp_path / source), "UV_NO_INDEX": "1", "UV_CACHE_DIR": str(tmp_path / source)}
        install.sync([str(requirements)], {**os.environ, **places}, python)

    install.install_uv()
    subprocess.run([install.UV, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv")], check=True)
    with pytest.raises(subprocess.CalledProcessError):
        sync("other", lock)
    with pytest.raises(subprocess.CalledProcessError):
        sync("wanted", unhashed)
    sync("wanted", lock)
    shown = subprocess.run([python, "-c", "import harmless; print(harmless.VALUE)"], capture_output=True, check=True)
    assert shown.stdout == b"1\n"
