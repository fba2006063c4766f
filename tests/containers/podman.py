"""podman and buildah with a separate configuration and storage, and the base image."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".containers"
BASE = "docker.io/library/debian:bookworm-slim"
_CONFIGURATION = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
shm_size = "1g"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""
_STORAGE = """
[storage]
driver = "overlay"
runroot = "{folder}/run"
graphroot = "{folder}/storage"
"""
#: Options of every container with Tenora: what compose.yml says.
HARDENED = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--pids-limit=4096", "--memory=8g"]
HARDENED += ["--tmpfs=/tmp", "--shm-size=1g"]


class Missing(SystemExit):
    """A program is not installed."""


def prepare() -> None:
    """Write the configuration and make the base image, unless they exist.

    Raises:
        Missing
    """
    for program in ("podman", "buildah", "debootstrap"):
        if shutil.which(program) is None:
            raise Missing(f"{program} is not installed. Run deploy/container/prepare.sh.")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "containers.conf").write_text(_CONFIGURATION)
    (FOLDER / "storage.conf").write_text(_STORAGE.format(folder=FOLDER))
    os.environ["CONTAINERS_CONF"] = str(FOLDER / "containers.conf")
    os.environ["CONTAINERS_STORAGE_CONF"] = str(FOLDER / "storage.conf")
    if subprocess.run(["podman", "image", "exists", BASE], check=False).returncode != 0:
        _make_base()


def _make_base() -> None:
    """Make Debian's base image: no registry can be reached."""
    root = FOLDER / "root"
    if not root.exists():
        made = root.with_name("root.new")
        shutil.rmtree(made, ignore_errors=True)
        run("nice", "-n", "19", "debootstrap", "--variant=minbase", "bookworm", str(made))
        made.rename(root)
    caches = ["./var/cache/apt/archives/*.deb", "./var/lib/apt/lists/*", "./proc/*", "./sys/*"]
    pack = ["tar", "-C", str(root), *(f"--exclude={path}" for path in caches), "-c", "."]
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as tar:
        subprocess.run(["podman", "import", "-", BASE], stdin=tar.stdout, check=True, capture_output=True)


def build(tag: str, file: Path, *options: str, context: Path = ROOT) -> None:
    """Build an image with the machine's network and local certificate authorities."""
    # Installing ca-certificates adds the authorities of this folder. It cannot replace a bundle that is a mount.
    authorities = "/usr/local/share/ca-certificates"
    command = ["nice", "-n", "19", "buildah", "bud", "--isolation=chroot", "--network=host", "--layers", "--format=oci"]
    command += [f"--volume={authorities}:{authorities}:ro", f"--file={file}", f"--tag={tag}", *options, str(context)]
    with (FOLDER / "build.log").open("ab") as log:
        done = subprocess.run(command, stdout=log, stderr=log, check=False)
    if done.returncode != 0:
        raise SystemExit(f"The image {tag} was not built. {FOLDER / 'build.log'} says why.")


def run(*command: str, **options: Any) -> str:
    """Run a command, and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)[:200]}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def podman(*arguments: str) -> str:
    return run("podman", *arguments)


@dataclass(frozen=True)
class Container:
    """A container that was started."""

    name: str

    def stop(self, seconds: int) -> int:
        """Send SIGTERM, wait for the end, and return the exit code."""
        podman("kill", "--signal=TERM", self.name)
        return self.wait(seconds)

    def wait(self, seconds: int) -> int:
        return int(run("timeout", str(seconds), "podman", "wait", self.name))

    def logs(self) -> str:
        done = subprocess.run(["podman", "logs", self.name], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr


def remove(names: Sequence[str], volumes: Sequence[str] = ()) -> None:
    """Remove containers and volumes, whether they exist or not."""
    with suppress(RuntimeError):
        podman("rm", "--force", "--volumes", "--ignore", *names)
    for volume in volumes:
        with suppress(RuntimeError):
            podman("volume", "rm", "--force", volume)


class Watch:
    """Times of the steps, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.monotonic()

    def lap(self, step: str) -> None:
        now = time.monotonic()
        self.seconds[step] = round(now - self._began, 1)
        self._began = now
        print(f"{step}: {self.seconds[step]} s", flush=True)
