"""The wheel of ``tenora-client`` on the oldest and the newest Python of this machine, against a demo server."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.clients import package

MAX_WHEEL_BYTES, MAX_INSTALLED_BYTES = 5 * 10**6, 40 * 10**6
_COMMAND_S = 300

# The callback needs transformers, which those who train have.
ALL_MODULES = """
import importlib, pkgutil, sys, tenora_client
for module in pkgutil.walk_packages(tenora_client.__path__, "tenora_client."):
    if module.name not in ("tenora_client.__main__", "tenora_client.callback"):
        importlib.import_module(module.name)
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "app", "adapters"}))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """Environment with the wheel, in a folder."""

    folder: Path

    def run(
        self, *command: str, exit_code: int = 0, environment: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")}
        done = subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            env=kept | {"HOME": str(self.folder), "COLUMNS": "200", **environment},
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            cwd=self.folder,
            check=False,
        )
        assert done.returncode == exit_code, f"{command}\n{done.stdout}\n{done.stderr}"
        return done

    def packages(self) -> set[str]:
        return {path.name.partition("-")[0] for path in self._site().glob("*.dist-info")}

    def size_bytes(self, package: str = "*") -> int:
        return sum(
            path.stat().st_size
            for folder in self._site().glob(package)
            for path in (folder, *folder.rglob("*"))
            if path.is_file() and path.suffix != ".pyc"
        )

    def _site(self) -> Path:
        (site,) = (self.folder / "lib").glob("python*/site-packages")
        return site


@pytest.fixture(scope="session", params=package.ENVIRONMENTS, ids=lambda environment: environment.name)
def installed(request: pytest.FixtureRequest) -> Installed:
    environment: package.Environment = request.param
    assert environment.is_current(), "The client has changed. Run `python3.11 -m tests.clients.install`."
    return Installed(environment.folder)


@pytest.fixture(scope="session")
def wheel(installed: Installed) -> Path:
    (wheel,) = installed.folder.glob("*.whl")
    return wheel


def test_the_package_is_small(installed: Installed, wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_WHEEL_BYTES
    assert 0 < installed.size_bytes("tenora_client*") < MAX_WHEEL_BYTES
    assert installed.size_bytes() < MAX_INSTALLED_BYTES
    assert not installed.packages() & {"torch", "numpy", "tenora", "vllm"}


def test_every_module_can_be_imported(installed: Installed) -> None:
    assert installed.run("python", "-W", "error", "-c", ALL_MODULES).stdout.strip() == ""


def test_the_command_says_its_version_and_its_commands(installed: Installed, wheel: Path) -> None:
    assert installed.run("tenora", "--version").stdout == f"tenora-client {wheel.name.split('-')[1]}\n"
    text = installed.run("tenora", "--help").stdout
    assert re.search(r"\W adapters ", text)
    assert not re.search(r"\W (server|serve|verify) ", text)
    said = installed.run("tenora", "serve", "--demo", exit_code=2).stderr
    assert "`tenora serve` needs the server's environment" in said


def test_an_adapter_is_published_and_answers(installed: Installed, demo: dict[str, str], tmp_path: Path) -> None:
    server = {"TENORA_URL": demo["TENORA_URL"].removesuffix("/v1"), "TENORA_KEY": demo["TENORA_KEY"]}
    name, folder = installed.folder.name, tmp_path / "pricing"
    installed.run("tenora", "adapters", "export", "pricing@1", str(folder), environment=server)
    pushed = installed.run("tenora", "adapters", "push", str(folder), "--adapter", name, environment=server)
    assert f"Requests for {name!r} now go to {name}@1." in pushed.stderr
    assert name in installed.run("tenora", "adapters", "list", environment=server).stdout
    ask = ("generate", "What is coffee?", "--chat", "--temperature", "0", "--max-tokens", "24")
    answer = installed.run("tenora", *ask, "--model", name, environment=server).stdout
    assert answer.strip()
    assert answer == installed.run("tenora", *ask, "--model", "pricing", environment=server).stdout
    installed.run("tenora", "adapters", "export", f"{name}@1", str(tmp_path / "out"), environment=server)
    weights = "adapter_model.safetensors"
    assert (tmp_path / "out" / weights).read_bytes() == (folder / weights).read_bytes()
    refused = installed.run("tenora", "adapters", "show", f"{name}@9", exit_code=1, environment=server)
    assert f"The newest is {name}@1" in refused.stderr
