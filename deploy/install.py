"""Make the environment in .venv from a pinned lock; a second run with nothing changed does nothing.

    python3.11 deploy/install.py [--device cpu|gpu] [--ray]

Standard library only. uv does the work; it reads nothing of pip's configuration, so pip's own index and
find-links are handed to it. The CPU build of torch comes from those sources too, or, where they lack it,
from PyTorch's CPU index. Every file, uv's own included, must have a hash that its lock names.

The lock of the CPU leaves out torchvision, torchaudio and torchcodec: plain registries have only CUDA builds
of them, with which vLLM's CPU build cannot be imported.

Ray is an extra, for engine replicas. An environment that has it keeps it in later runs without ``--ray``.
"""

import argparse
import ctypes
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "client"
LOCKS = ROOT / "deploy" / "locks"
TOOLS = ROOT / ".tools"
VENV = ROOT / ".venv"
STAMP = VENV / "tenora-stamp"
UV = TOOLS / "bin" / "uv"
WITH_RAY = "ray+"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the environment in .venv from a pinned lock.")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--ray", action="store_true", help="add Ray, for engine replicas")
    arguments = parser.parse_args()
    device, ray = arguments.device, arguments.ray or has_ray()
    # In 3.11.0 any user of the machine can run code in a fork server (CVE-2022-42919).
    if not (3, 11, 1) <= sys.version_info < (3, 12):
        raise SystemExit(
            f"This is Python {sys.version.split()[0]}, but Tenora needs 3.11.1 or a later 3.11. "
            "Name one: make PYTHON=/path/to/python3.11"
        )
    stamp = fingerprint(device, ray=ray)
    if STAMP.exists() and STAMP.read_text() == stamp:
        return
    if device == "cpu":
        check_libnuma()
    environment = uv_environment(device)
    install_uv()
    uv(["venv", "--quiet", "--allow-existing", "--python", sys.executable, str(VENV)], environment)
    requirements = [str(LOCKS / f"{device}.txt")]
    if device == "cpu":
        install_torch(environment)
        requirements.append(str(LOCKS / "cpu-torch.txt"))
    if ray:
        requirements.append(str(LOCKS / "ray.txt"))
    sync(requirements, environment)
    editable = [word for folder in (CLIENT, ROOT) for word in ("-e", str(folder))]
    install = ["pip", "install", "--quiet", "--python", str(python()), "--no-deps", "--no-build-isolation", *editable]
    uv(install, environment)
    # `import vllm` alone passes in broken environments; this name pulls in the model code.
    subprocess.run([python(), "-c", "from vllm import LLM"], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    STAMP.write_text(stamp)


def check_libnuma() -> None:
    """End the installation if the library that vLLM's CPU build is linked to cannot be loaded."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError as error:
        raise SystemExit(
            f"vLLM's CPU build cannot load libnuma.so.1 ({error}). Install it with `apt-get install libnuma1` "
            "or `dnf install numactl-libs`."
        ) from None


def python() -> Path:
    return VENV / "bin" / "python"


def has_ray() -> bool:
    return STAMP.exists() and STAMP.read_text().startswith(WITH_RAY)


def fingerprint(device: str, *, ray: bool = False) -> str:
    projects = [ROOT / "pyproject.toml", CLIENT / "pyproject.toml"]
    files = [Path(__file__), *projects, *sorted(LOCKS.glob("*.txt"))]
    return (
        (WITH_RAY if ray else "") + device + hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
    )


def pip_configuration() -> dict[str, str]:
    """pip's settings by name; `pip config list` sees every file and PIP_ variable, later lines win."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    settings: dict[str, str] = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        scope, _, key = name.rpartition(".")
        if scope in {"global", "install", ":env:"} and (scope == ":env:" or f":env:.{key}=" not in listing):
            settings[key] = value.strip().strip("'\"").replace("\\n", " ")
    return settings


def uv_environment(device: str) -> dict[str, str]:
    pip = pip_configuration()
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_HTTP_TIMEOUT": "180"}
    if index := pip.get("index-url"):
        environment.setdefault("UV_DEFAULT_INDEX", index)
    # The GPU lock's torch would be met by a CPU wheel that lies in find-links.
    if device == "cpu" and (links := pip.get("find-links")):
        environment.setdefault("UV_FIND_LINKS", ",".join(links.split()))
    return environment


def install_uv() -> None:
    lock = LOCKS / "uv.txt"
    version = next(line for line in lock.read_text().splitlines() if line.startswith("uv==")).split()[0][len("uv==") :]
    if UV.exists() and version in subprocess.run([UV, "--version"], capture_output=True, text=True).stdout:
        return
    subprocess.run([sys.executable, "-m", "venv", str(TOOLS)], check=True)
    subprocess.run([TOOLS / "bin" / "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)], check=True)


def sync(locks: list[str], environment: dict[str, str], interpreter: Path | None = None) -> None:
    """Make an environment hold what these locks list, and nothing else; a file with another hash ends it."""
    uv(["pip", "sync", "--quiet", "--require-hashes", "--python", str(interpreter or python()), *locks], environment)


def install_torch(environment: dict[str, str]) -> None:
    lock = str(LOCKS / "cpu-torch.txt")
    install = ["pip", "install", "--quiet", "--require-hashes", "--python", str(python()), "--no-deps", "-r", lock]
    if subprocess.run([UV, *install], env=environment, cwd=ROOT, capture_output=True).returncode != 0:
        sys.stderr.write("pip's sources lack the torch of the lock. It is taken from PyTorch's index.\n")
        uv([*install, "--default-index", TORCH_CPU_INDEX], environment)


def uv(arguments: list[str], environment: dict[str, str]) -> None:
    subprocess.run([UV, *arguments], check=True, env=environment, cwd=ROOT)


if __name__ == "__main__":
    main()
